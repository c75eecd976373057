"""Shoes, bags and luggage."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["SHOES", "TRAVEL"]


SHOES = Department(
    category="shoes",
    openers=(
        "{This} feels right from the first step.",
        "{brand} shapes {this} around the foot.",
    ),
    closers=(
        "Order your usual size.",
        "Let wet shoes dry slowly, away from the heater.",
        "The box holds one pair.",
        "Brush off dirt once it is dry.",
    ),
    kinds=(
        kind(
            "men's running shoes",
            "men's running shoes",
            "Running",
            (32, 120),
            o.SHOE_COLORS,
            o.MEN_SHOES,
            form="pair",
            styles="road; trail; tempo; training",
            attributes="""rubber sole; arch support; light weight; slip resistant; mesh upper / knit upper;
            reflective trim; memory foam; shock absorbing; wide toe""",
            uses="the first mile; long road runs; treadmill days; city parks",
            facts="""Cushioned heel and a firm front.; The tongue stays centered.; Laces of round cord.; Removable
            insole.; A pull tab helps at the heel.""",
        ),
        kind(
            "women's running shoes",
            "women's running shoes",
            "Running",
            (32, 120),
            o.SHOE_COLORS,
            o.WOMEN_SHOES,
            form="pair",
            styles="road; trail; tempo; training",
            attributes="""rubber sole; arch support; light weight; slip resistant; mesh upper / knit upper;
            reflective trim; memory foam; shock absorbing; machine washable""",
            uses="morning runs; gym classes; fast walks; race day",
            facts="""Shaped on a women's last.; Soft collar at the ankle.; Bends where the foot bends.; Removable
            insole.; Flat laces that stay tied.""",
        ),
        kind(
            "men's hiking boots",
            "men's hiking boots",
            "Outdoor",
            (45, 160),
            o.LEATHER,
            o.MEN_SHOES,
            form="pair",
            styles="mid cut; high cut; mountain; winter",
            attributes="""water resistant; rubber sole; ankle support; genuine leather / faux leather / mesh upper;
            slip resistant; steel toe; lace up; memory foam""",
            uses="rocky trails; wet forests; work outdoors; weekends in the hills",
            facts="""Deep treads shed mud.; Metal hooks for quick lacing.; Padded tongue keeps stones out.; Break
            them in on short walks.; Reinforced at the toes.""",
        ),
        kind(
            "women's sandals",
            "women's sandals",
            "Summer",
            (16, 70),
            o.SHOE_COLORS,
            o.WOMEN_SHOES,
            form="pair",
            styles="strappy; flat; wedge; beach",
            attributes="""rubber sole; open toe; arch support; genuine leather / faux leather; adjustable strap; slip
            on; memory foam; slip resistant""",
            uses="summer days; the beach; garden parties; holidays by the sea",
            facts="""Edges are sewn and smooth.; Low heel that is easy to walk in.; Wipe with a damp cloth.; Straps
            soften with wear.; Looks good with dresses and jeans.""",
        ),
        kind(
            "men's loafers",
            "men's loafers",
            "Formal",
            (28, 110),
            o.LEATHER,
            o.MEN_SHOES,
            form="pair",
            styles="penny; driving; tassel; classic",
            attributes="""slip on; rubber sole; genuine leather / faux leather / soft suede; arch support; slip
            resistant; memory foam; office wear / everyday wear; hand stitched""",
            uses="the office; dinners out; weddings; airport days",
            facts="""Lined with soft cloth.; Low heel with a quiet step.; Use a shoe tree to keep the shape.; Goes
            with suits and chinos.; The heel cup is padded.""",
        ),
        kind(
            "slippers",
            "house slippers",
            "House",
            (10, 42),
            o.SHOE_COLORS,
            o.WOMEN_SHOES,
            form="pair",
            styles="clog; open back; moccasin; winter",
            attributes="""memory foam; slip on; rubber sole; faux fur / merino wool / soft suede; indoor outdoor;
            extra soft""",
            uses="cold floors; slow mornings; letting the dog out; hotel rooms",
            facts="""Quiet on wooden floors.; Warm without being hot.; The edges are stitched twice.; Easy to pack.;
            Springs back after each step.""",
        ),
        kind(
            "rain boots",
            "women's rain boots",
            "Outdoor",
            (20, 75),
            o.SHOE_COLORS,
            o.WOMEN_SHOES,
            form="pair",
            styles="tall; ankle; matte; garden",
            attributes="""water proof; rubber sole; slip resistant; easy clean; fleece lining; pull tabs; wide calf;
            slip on; vegan friendly""",
            uses="puddles; muddy gardens; wet school runs; dog walks",
            facts="""Rinse under the tap and they look new.; Room for thick socks.; Seams are welded.; Soft enough to
            bend at the ankle.; Stand them upside down to dry.""",
        ),
    ),
)

TRAVEL = Department(
    category="luggage",
    openers=(
        "{This} makes packing easy.",
        "{brand} travels a lot, and it shows in {this}.",
    ),
    closers=(
        "Check the limits of your airline before you fly.",
        "Comes with a tag for your address.",
        "Photos may show things that are not included.",
    ),
    kinds=(
        kind(
            "suitcases",
            "suitcase",
            "Suitcases and Bags",
            (45, 220),
            o.TECH,
            o.CASES,
            styles="ribbed; business; weekender; classic",
            attributes="""hard shell / soft shell; spinner wheels; combination lock; expandable design; light weight;
            scratch resistant; usb port; telescopic handle; laptop pocket""",
            uses="short trips; family holidays; business travel; moving to college",
            facts="""Two halves with a mesh divider.; Rolls quietly on tiles and stone.; A pocket for socks on the
            inside.; Corners are guarded.; Grips on top and side.""",
        ),
        kind(
            "travel pillows",
            "travel pillow",
            "Travel Extras",
            (10, 40),
            o.SOFT_HOME,
            styles="neck; inflatable; lumbar; compact",
            attributes="""memory foam; machine washable; carrying case; adjustable strap; washable cover; light
            weight; bamboo fiber / soft velvet; chin support""",
            uses="night flights; long train rides; the back seat; a nap at the office",
            facts="""Packs to half its size.; Snaps onto a suitcase handle.; The cover comes off with a zipper.;
            Holds the head upright.; Airs out in an hour.""",
        ),
        kind(
            "packing cubes",
            "packing cube set",
            "Travel Extras",
            (12, 42),
            o.BRIGHT,
            o.PACKS,
            styles="mesh top; slim; compression; family",
            attributes="""water resistant; machine washable; zipper closure; mesh panel; light weight; recycled
            polyester; laundry bag; heavy duty""",
            uses="carry-on trips; families; gym bags; hotel drawers",
            facts="""Keeps shirts flat and apart from shoes.; See at a glance what is inside.; Several sizes that
            stack together.; Handles on the short side.; Weighs next to nothing.""",
        ),
        kind(
            "duffel bags",
            "duffel bag",
            "Suitcases and Bags",
            (18, 80),
            o.OUTDOOR,
            o.LITERS,
            styles="gym; weekend; barrel; folding",
            attributes="""water resistant; shoulder strap; shoe compartment; zipper closure; heavy duty; wet pocket;
            genuine leather / faux leather / recycled polyester; light weight""",
            uses="the gym; a weekend away; team sports; the trunk of the car",
            facts="""The opening is as long as the bag.; Stands on four small feet.; Handles wrap together.; A key
            clip inside.; Fits under most airline seats when half full.""",
        ),
        kind(
            "toiletry bags",
            "toiletry bag",
            "Travel Extras",
            (9, 38),
            o.LEATHER,
            styles="hanging; flat; roll up; classic",
            attributes="""water resistant; hanging hook; easy clean; leak proof; zipper closure; mesh pockets;
            genuine leather / faux leather / pure cotton; travel size""",
            uses="hotel bathrooms; the gym; camp sites; a week abroad",
            facts="""Opens wide to show everything.; Elastic loops hold bottles upright.; Lined with a wipeable
            cloth.; Fits full-size bottles.; Closes flat in a suitcase.""",
        ),
        kind(
            "laptop backpacks",
            "laptop backpack",
            "Suitcases and Bags",
            (24, 95),
            o.OUTDOOR,
            o.SCREENS,
            styles="commuter; slim; campus; roll top",
            attributes="""water resistant; usb port; padded straps; luggage strap; hidden pocket; light weight;
            recycled polyester / faux leather; bottle pocket; heavy duty""",
            uses="the daily commute; campus; day hikes; short business trips",
            facts="""The back panel lets air through.; Opens flat like a suitcase.; Pen loops and a key clip in
            front.; The bottom is padded.; Stands up by itself.""",
        ),
    ),
)
