"""Bedding and bath, furniture, decoration and light."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["BEDDING", "DECOR", "FURNITURE"]

_ROOMS = "living room / home office / dining room / small spaces"

BEDDING = Department(
    category="bed and bath",
    openers=(
        "Make the house a little softer with {this}.",
        "{brand} weaves and sews with care.",
    ),
    closers=(
        "Wash separately the first time.",
        "Colors may differ slightly from one batch to the next.",
        "Air before first use.",
        "Comes in a cloth bag you can keep.",
    ),
    kinds=(
        kind(
            "sheet sets",
            "sheet set",
            "Bed",
            (22, 110),
            o.SOFT_HOME,
            o.BEDS,
            styles="hotel; percale; sateen; classic",
            attributes="""machine washable; pure cotton / bamboo fiber / linen blend / soft flannel; wrinkle free;
            fade resistant; deep pockets; extra soft; hypoallergenic fabric; cooling fabric""",
            uses="the main bedroom; guest rooms; a new home; hot nights",
            facts="""Flat sheet, fitted sheet and pillowcases.; Elastic all the way round.; Gets softer with each
            wash.; Labels mark head and foot.; Tumble dry low.""",
        ),
        kind(
            "throw pillows",
            "throw pillow",
            "Pillows and Throws",
            (9, 42),
            o.SOFT_HOME,
            o.CUSHIONS,
            styles="tufted; woven; fringed; quilted",
            attributes="""machine washable; zipper closure; double sided; soft velvet / pure cotton / linen blend /
            faux fur; insert included; fade resistant; living room / guest room""",
            uses="sofas; reading corners; benches; garden chairs",
            facts="""Plump it up once in a while.; Corners keep their shape.; Looks good in pairs.; The zipper hides
            in the seam.; Spot clean small marks.""",
        ),
        kind(
            "throw blankets",
            "throw blanket",
            "Pillows and Throws",
            (14, 68),
            o.SOFT_HOME,
            o.THROWS,
            styles="knitted; waffle; plush; herringbone",
            attributes="""machine washable; pure cotton / merino wool / faux fur / recycled polyester; extra soft;
            light weight; double sided; pet friendly; fade resistant; tumble dry""",
            uses="the sofa; movie nights; cold offices; the foot of the bed",
            facts="""Drapes well over an armrest.; Edges are bound.; Big enough to share.; Warm but not heavy.; Shake
            out before use.""",
        ),
        kind(
            "bath towels",
            "bath towel set",
            "Bath",
            (14, 65),
            o.SOFT_HOME,
            o.PACKS,
            styles="spa; hotel; ribbed; everyday",
            attributes="""machine washable; pure cotton / bamboo fiber; quick drying; extra thick; fade resistant;
            hanging loop; highly absorbent; tumble dry""",
            uses="family bathrooms; the gym; a weekend cabin; guests",
            facts="""Long loops soak up water fast.; Dense weave that does not shed.; Skip the fabric softener.;
            Folds neatly on a shelf.; Hems are sewn twice.""",
        ),
        kind(
            "shower curtains",
            "shower curtain",
            "Bath",
            (10, 40),
            o.SOFT_HOME,
            o.PATTERNS,
            styles="fabric; waffle; hotel; printed",
            attributes="""water resistant; machine washable; weighted hem; rust proof; hooks included; quick drying;
            mildew resistant; pvc free""",
            uses="tubs; walk-in showers; rented flats; guest bathrooms",
            facts="""Standard width of 72 inches.; Twelve holes at the top.; Hangs straight.; Needs no liner in most
            showers.; Leave spread out to dry.""",
        ),
        kind(
            "bath mats",
            "bath mat",
            "Bath",
            (9, 38),
            o.SOFT_HOME,
            o.THREE_SIZES,
            styles="tufted; woven; plush; ribbed",
            attributes="""non slip; machine washable; memory foam / pure cotton / bamboo fiber; quick drying; extra
            thick; highly absorbent; fade resistant""",
            uses="wet feet; the front of the sink; small bathrooms; the shower",
            facts="""Low enough for the door to pass over it.; Lies flat from the start.; Shake out between washes.;
            Pleasant under bare feet.; Hang over the tub to dry.""",
        ),
        kind(
            "bed pillows",
            "bed pillow",
            "Bed",
            (14, 70),
            o.PILLOWS,
            o.PACKS,
            styles="hotel; side sleeper; cloud; slim",
            attributes="""memory foam / down alternative; machine washable; washable cover; cooling fabric;
            hypoallergenic fabric; adjustable fill; zipper closure; side sleepers / back sleepers""",
            uses="deep sleep; guest beds; reading in bed; warm nights",
            facts="""Let it rise for a day after unpacking.; Does not go flat in a month.; Quiet filling.; Fits
            standard pillowcases of its size.; Air it in the sun now and then.""",
        ),
    ),
)

FURNITURE = Department(
    category="furniture",
    openers=(
        "With clean lines, {this} suits old and new rooms.",
        "{brand} draws, builds and tests every piece.",
    ),
    closers=(
        "All screws and a hex key are in the box.",
        "Measure your room before you order.",
        "Two people lift it with ease.",
        "Shades on a screen may vary a little.",
    ),
    kinds=(
        kind(
            "console tables",
            "console table",
            "Tables",
            (60, 320),
            o.WOOD,
            styles="narrow; rustic; farmhouse; modern",
            attributes=f"""solid wood / engineered wood / tempered glass; metal legs; easy assembly; storage shelf;
            space saving; scratch resistant; {_ROOMS}; two drawers""",
            uses="the entryway; the wall behind a sofa; a narrow hallway; a bay window",
            facts="""Feet can be leveled.; Pads protect the floor.; Holds lamps, plants and keys.; Corners are
            rounded.; Carries up to 90 pounds.""",
        ),
        kind(
            "bookcases",
            "bookcase",
            "Storage",
            (45, 260),
            o.WOOD,
            styles="open; ladder; tall; corner",
            attributes=f"""solid wood / engineered wood; metal frame; easy assembly; wall mounted / wall anchor;
            space saving; adjustable shelves; scratch resistant; {_ROOMS}""",
            uses="paperbacks; a study; children's rooms; plants and photos",
            facts="""Shelves hold large books.; A back panel keeps it square.; Put heavy books at the bottom.; Fits
            behind a door.; Easy to dust.""",
        ),
        kind(
            "office chairs",
            "office chair",
            "Seats",
            (70, 320),
            o.SOFT_HOME,
            styles="executive; task; drafting; mid back",
            attributes="""lumbar support; adjustable height; swivel seat; mesh back / faux leather / genuine leather;
            padded armrests; easy assembly; heavy duty; memory foam; silent wheels""",
            uses="long days at the desk; a study; a reception desk; evening classes",
            facts="""Tilts back and locks.; Five-point base.; Holds up to 280 pounds.; Seat edge slopes down to spare
            the legs.; Takes half an hour to put together.""",
        ),
        kind(
            "bar stools",
            "bar stool",
            "Seats",
            (40, 210),
            o.LEATHER,
            o.STOOLS,
            styles="industrial; backless; farmhouse; mid century",
            attributes="""swivel seat; solid wood / metal frame; faux leather / soft velvet; foot rest; easy
            assembly; padded seat; heavy duty; dining room / kitchen island; scratch resistant""",
            uses="breakfast counters; the garage bar; tall tables; a café corner",
            facts="""Feet with soft caps.; Wipes clean.; Slides under the counter.; Does not wobble.; Carries up to
            250 pounds.""",
        ),
        kind(
            "nightstands",
            "nightstand",
            "Storage",
            (38, 180),
            o.WOOD,
            styles="floating; two tier; farmhouse; modern",
            attributes="""solid wood / engineered wood; soft close; usb port; easy assembly; storage shelf; metal
            legs; space saving; scratch resistant; guest room / kids room""",
            uses="the bedside; small bedrooms; a sofa corner; a dorm",
            facts="""Drawer deep enough for a book.; Room for a lamp and a glass.; Back is finished, too.; Rounded
            front corners.; Level with most beds.""",
        ),
        kind(
            "storage ottomans",
            "storage ottoman",
            "Seats",
            (30, 140),
            o.SOFT_HOME,
            o.SHAPES,
            styles="tufted; folding; cube; bench",
            attributes="""faux leather / soft velvet / linen blend; padded seat; easy assembly; hinged lid; space
            saving; easy clean; solid wood; heavy duty; living room / guest room""",
            uses="toys and blankets; the end of the bed; extra seats; a foot rest",
            facts="""The lid stays open by itself.; Folds flat in seconds.; Seats a grown-up.; Lined inside.; Light
            enough to move with one hand.""",
        ),
        kind(
            "shoe racks",
            "shoe rack",
            "Storage",
            (18, 95),
            o.WOOD,
            o.run_of("Size", "two tier; three tier; five tier", o.DIMENSIONS, 2, 3),
            styles="entryway; bench; stackable; slim",
            attributes="""solid wood / bamboo wood / metal frame; easy assembly; space saving; heavy duty; stackable
            design; non slip; rust proof; padded seat; small spaces""",
            uses="hallways; closets; mud rooms; a busy family",
            facts="""Slats let dust fall through.; Holds two pairs side by side.; Boots fit on top.; No tools
            needed.; Wipe with a damp cloth.""",
        ),
        kind(
            "computer desks",
            "computer desk",
            "Tables",
            (70, 340),
            o.WOOD,
            styles="writing; corner; standing; compact",
            attributes="""solid wood / engineered wood / tempered glass; metal legs / metal frame; cable management;
            adjustable height; easy assembly; keyboard tray; storage shelf; scratch resistant; home office / small
            spaces""",
            uses="remote work; homework; two monitors; a quiet corner",
            facts="""Room for two screens.; Does not shake when you type.; A hook for headphones.; Edges are sealed.;
            Legs adjust to uneven floors.""",
        ),
    ),
)

DECOR = Department(
    category="decor and lighting",
    openers=(
        "Give a plain room some character with {this}.",
        "{This} looks good all year round.",
    ),
    closers=(
        "Carefully packed to arrive whole.",
        "Easy to pair with what you have.",
        "Looks even better in a group.",
        "A thoughtful gift for a new home.",
    ),
    kinds=(
        kind(
            "table lamps",
            "table lamp",
            "Light",
            (18, 110),
            o.METAL,
            styles="bedside; mushroom; tripod; classic",
            attributes="""solid wood / ceramic base / brushed metal; usb port; touch control; dimmable light; bulb
            included; linen shade / glass shade; living room / guest room / home office""",
            uses="reading corners; the bedroom; a desk; a dark hallway",
            facts="""Switch on a cord of 5 ft.; Takes a standard bulb.; Felt under the foot.; Shade lifts off for
            dusting.; Soft light without glare.""",
        ),
        kind(
            "wall clocks",
            "wall clock",
            "Walls",
            (13, 70),
            o.METAL,
            o.DISCS,
            styles="farmhouse; minimal; station; vintage",
            attributes="""silent movement; battery powered; solid wood / brushed metal; easy read; glass cover; large
            numbers; living room / home office / dining room""",
            uses="the kitchen; a classroom; the office; the hallway",
            facts="""One small cell runs it for a year.; Hangs on a single nail.; Keeps time to the minute.; Clean,
            open dial.; Arrives set to noon.""",
        ),
        kind(
            "area rugs",
            "area rug",
            "Rugs and Curtains",
            (25, 260),
            o.SOFT_HOME,
            o.RUGS,
            o.PATTERNS,
            styles="shag; woven; vintage look; braided",
            attributes="""machine washable; non slip; stain resistant; fade resistant; extra soft; low pile / high
            pile; pet friendly; pure cotton / natural jute / recycled polyester; living room / dining room / kids
            room""",
            uses="the living area; the space under a table; a nursery; cold tiles",
            facts="""Lies flat after a day.; Vacuum without the brush.; Edges are bound by hand.; Muffles footsteps.;
            Roll, do not fold.""",
        ),
        kind(
            "picture frames",
            "picture frame",
            "Walls",
            (8, 48),
            o.WOOD,
            o.PRINTS,
            styles="gallery; floating; beaded; slim",
            attributes="""solid wood / brushed metal / recycled plastic; wall mounted; tempered glass; easy assembly;
            mat included; table stand; scratch resistant""",
            uses="family photos; a gallery wall; certificates; a child's first drawing",
            facts="""Hangs upright or across.; Clips at the back are quick to open.; Film on the glass peels off.;
            Hooks are fixed.; Sits flat against the wall.""",
        ),
        kind(
            "vases",
            "vase",
            "Accents",
            (10, 60),
            o.STONEWARE,
            o.THREE_SIZES,
            styles="bud; ribbed; tall; rustic",
            attributes="""hand made; ceramic body / recycled glass; water tight; dishwasher safe; matte finish /
            glazed finish; non slip; wide opening / narrow neck""",
            uses="fresh tulips; dried grass; the mantel; a dinner table",
            facts="""Heavy base, so it stands firm.; Looks good empty, too.; Felt pads under the foot.; Rinse with
            warm water.; Each one is a little different.""",
        ),
        kind(
            "scented candles",
            "scented candle",
            "Light",
            (8, 38),
            o.WARM,
            o.SMALL_OZ,
            styles="three wick; jar; tin; pillar",
            attributes="""soy wax / natural beeswax; long lasting; lead free; hand poured; gift box; clean burning;
            wooden wick / cotton wick; essential oils""",
            uses="a bath; winter evenings; the dinner table; a small thank-you",
            facts="""Trim before each use.; Let the top melt to the edge.; Never leave a flame alone.; The glass can
            be used again.; Fills a room without taking it over.""",
        ),
        kind(
            "curtains",
            "curtain panel",
            "Rugs and Curtains",
            (14, 75),
            o.SOFT_HOME,
            o.DRAPES,
            styles="grommet; sheer; rod pocket; pleated",
            attributes="""machine washable; room darkening / light filtering; linen blend / soft velvet / recycled
            polyester; thermal lining; wrinkle free; noise reducing; fade resistant; living room / kids room""",
            uses="tall windows; shift workers; a street-side room; patio doors",
            facts="""Slides easily on the rod.; Hem at the bottom is weighted.; Iron on low if needed.; Falls in even
            folds.; Rod not included.""",
        ),
        kind(
            "wall mirrors",
            "wall mirror",
            "Walls",
            (24, 190),
            o.METAL,
            o.SHAPES,
            styles="arched; hallway; vanity; beveled",
            attributes="""wall mounted; metal frame / solid wood; shatter proof; rust proof; anti fog; easy install;
            hanging hardware; living room / dining room""",
            uses="the entryway; a small bathroom; a dressing corner; dark rooms",
            facts="""Clear image to the very edge.; Makes a room look larger.; Hang it high or low.; Wipe with a dry
            cloth.; Back is covered.""",
        ),
    ),
)
