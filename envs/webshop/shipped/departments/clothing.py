"""Clothes for women, men and children."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["CHILDREN", "MEN", "WOMEN"]

_CARE = "machine washable / hand wash"
_OPENERS = (
    "Simple to wear and easy to match: {a} that goes with most things.",
    "Put on {this} and leave the iron where it is.",
    "{brand} cuts {this} with care.",
)
_CLOSERS = (
    "See the size chart before you order.",
    "Colors may look a little different on your screen.",
    "Wash dark shades on their own the first time.",
    "Between two sizes, take the larger one.",
)

WOMEN = Department(
    category="women's fashion",
    openers=_OPENERS,
    closers=_CLOSERS,
    kinds=(
        kind(
            "women's dresses",
            "women's dress",
            "Dresses and Skirts",
            (16, 68),
            o.CLOTHES,
            o.LETTERS,
            styles="midi; wrap; summer; shirt; tiered",
            attributes=f"""{_CARE}; long sleeve / short sleeve; v neck / crew neck; side pockets; elastic waist; pure
            cotton / linen blend / stretch fabric; wrinkle free; button closure""",
            uses="warm evenings; garden parties; office days; weekends in town",
            facts="""The hem falls just below the knee.; Seams lie flat inside.; Goes with sandals as well as with
            boots.; Lined from the waist down.; Made to be worn with or without a belt.""",
        ),
        kind(
            "women's cardigans",
            "women's cardigan",
            "Tops",
            (18, 72),
            o.CLOTHES,
            o.LETTERS,
            styles="open front; chunky; cropped; longline",
            attributes=f"""{_CARE}; merino wool / pure cotton / cotton blend; button closure; side pockets; long
            sleeve; relaxed fit / slim fit; light weight; everyday wear / office wear""",
            uses="cool offices; autumn walks; evenings on the sofa; layered outfits",
            facts="""Ribbed cuffs keep their shape.; Soft against bare arms.; Dry flat in the shade.; Fine gauge knit
            with clean edges.; Folds small enough for a handbag.""",
        ),
        kind(
            "women's leggings",
            "women's leggings",
            "Activewear",
            (12, 48),
            o.CLOTHES,
            o.LETTERS,
            form="pair",
            styles="full length; cropped; seamless; winter",
            attributes="""machine washable; high waist; side pockets; stretch fabric; quick drying; squat proof;
            fleece lining; everyday wear; moisture wicking""",
            uses="yoga classes; morning runs; lazy Sundays; long flights",
            facts="""Flat seams do not rub.; The waistband stays up without rolling.; Keeps its color after many
            washes.; Wash inside out.; Cut for free movement at the knee.""",
        ),
        kind(
            "women's blouses",
            "women's blouse",
            "Tops",
            (14, 52),
            o.CLOTHES,
            o.LETTERS,
            styles="satin look; tunic; pleated; classic",
            attributes=f"""{_CARE}; long sleeve / short sleeve; v neck / crew neck; button closure; wrinkle free;
            pure cotton / linen blend; office wear / everyday wear; regular fit / relaxed fit""",
            uses="office days; dinner with friends; interviews; spring afternoons",
            facts="""Cut a little longer at the back.; Neat collar that lies flat.; Iron on low heat if you must.;
            Tucks well into skirts and trousers.; A spare button is sewn inside.""",
        ),
        kind(
            "women's skirts",
            "women's skirt",
            "Dresses and Skirts",
            (14, 55),
            o.CLOTHES,
            o.LETTERS,
            styles="pleated; midi; denim look; wrap",
            attributes=f"""{_CARE}; elastic waist; side pockets; high waist; zipper closure / button closure; pure
            cotton / linen blend / stretch fabric; wrinkle free""",
            uses="summer days; the office; a walk by the sea; city trips",
            facts="""Swings nicely as you walk.; Lined, so it does not cling.; Looks good with a tucked-in shirt.;
            The hem has a little to spare.; Hang to dry.""",
        ),
        kind(
            "women's pajamas",
            "women's pajama set",
            "Nightwear",
            (18, 60),
            o.CLOTHES,
            o.LETTERS,
            styles="two piece; classic; summer; cozy",
            attributes="""machine washable; long sleeve / short sleeve; drawstring closure / elastic waist; side
            pockets; pure cotton / bamboo fiber / soft flannel; button closure; relaxed fit""",
            uses="slow mornings; cold nights; hotel stays; a long weekend",
            facts="""Top and trousers in one set.; No label to scratch the neck.; Piping along collar and cuffs.;
            Softer with every wash.; Comes folded in a paper band.""",
        ),
    ),
)

MEN = Department(
    category="men's fashion",
    openers=_OPENERS,
    closers=_CLOSERS,
    kinds=(
        kind(
            "men's t-shirts",
            "men's t-shirt",
            "Shirts",
            (9, 34),
            o.CLOTHES,
            o.LETTERS,
            styles="plain; pocket; heavyweight; graphic",
            attributes="""machine washable; short sleeve / long sleeve; crew neck / v neck; pure cotton / cotton
            blend / recycled polyester; slim fit / regular fit / relaxed fit; moisture wicking; tag free; everyday
            wear""",
            uses="every day of the week; the gym; layering; hot afternoons",
            facts="""Double stitching at sleeves and hem.; Holds its shape at the neck.; Can be worn tucked in or
            out.; Shoulder seams are taped.; Tumble dry low.""",
        ),
        kind(
            "men's jeans",
            "men's jeans",
            "Trousers",
            (22, 85),
            o.any_of("Color", "black; blue; gray; white; olive; brown", o.COLOR, 2, 4),
            o.WAISTS,
            form="pair",
            styles="five pocket; work; washed; classic",
            attributes="""machine washable; slim fit / relaxed fit / straight leg; zipper closure / button closure;
            stretch fabric / pure cotton; heavy duty; everyday wear; fade resistant""",
            uses="workdays; long rides; weekends; the workshop",
            facts="""Rivets where the strain is greatest.; Softens after a few wears.; Wash inside out with like
            colors.; Belt loops take a wide belt.; Hem of normal length.""",
        ),
        kind(
            "men's hoodies",
            "men's hoodie",
            "Outer Layers",
            (20, 70),
            o.CLOTHES,
            o.LETTERS,
            styles="pullover; zip up; training; oversized",
            attributes="""machine washable; fleece lining; drawstring closure; side pockets; cotton blend / recycled
            polyester; relaxed fit / regular fit; moisture wicking; long sleeve""",
            uses="cool evenings; the way to training; camp fires; days at home",
            facts="""The hood is cut wide enough for a cap.; Ribbed cuffs and hem.; Stays soft inside.; Dries
            overnight on a line.; Roomy across the shoulders.""",
        ),
        kind(
            "men's polo shirts",
            "men's polo shirt",
            "Shirts",
            (14, 48),
            o.CLOTHES,
            o.LETTERS,
            styles="golf; tipped; classic; summer",
            attributes="""machine washable; short sleeve / long sleeve; pure cotton / cotton blend / recycled
            polyester; button closure; moisture wicking; slim fit / regular fit; wrinkle free; office wear""",
            uses="casual Fridays; a round of golf; summer dinners; travel days",
            facts="""The collar does not curl.; Side vents at the hem.; Neat under a jacket.; Fast colors.; Three
            buttons and a spare.""",
        ),
        kind(
            "men's boxer briefs",
            "men's boxer briefs",
            "Underwear",
            (10, 42),
            o.LETTERS,
            o.PACKS,
            form="pair",
            styles="sport; classic; long leg; seamless",
            attributes="""machine washable; tag free; pure cotton / bamboo fiber / stretch fabric; moisture wicking;
            quick drying; elastic waist; everyday wear""",
            uses="long days; workouts; travel; warm weather",
            facts="""Legs do not ride up.; Flat seams all round.; The waistband stays flat.; Wash warm with like
            colors.; Assorted dark shades.""",
        ),
        kind(
            "men's jackets",
            "men's jacket",
            "Outer Layers",
            (35, 150),
            o.CLOTHES,
            o.LETTERS,
            styles="bomber; rain; field; padded",
            attributes="""water resistant; wind proof; zipper closure / button closure; side pockets; fleece lining;
            light weight; machine washable; reflective trim; removable hood""",
            uses="wet commutes; autumn hikes; ball games; early mornings",
            facts="""Cuffs can be tightened.; A pocket inside holds a phone.; Rolls up small.; The collar closes
            high.; Long enough to sit on.""",
        ),
    ),
)

CHILDREN = Department(
    category="kids and baby",
    openers=(
        "Children are hard on things, and {this} is made for it.",
        "{brand} keeps it simple and cheerful.",
    ),
    closers=(
        "Wash before first use.",
        "A welcome gift for a birthday.",
        "Designed by parents who wanted something simple.",
    ),
    kinds=(
        kind(
            "kids' pajamas",
            "kids' pajama set",
            "Clothes",
            (12, 36),
            o.KIDS_COLORS,
            o.KIDS_SIZES,
            styles="dinosaur; star print; striped; space",
            attributes="""machine washable; pure cotton / bamboo fiber / soft flannel; long sleeve / short sleeve;
            elastic waist; tag free; snug fit; fade resistant""",
            uses="bedtime stories; sleepovers; holiday mornings; camp",
            facts="""Two pieces in one set.; Cuffs at wrist and ankle.; Easy for little hands to pull on.; The print
            does not crack.; Should fit close to the body.""",
        ),
        kind(
            "kids' backpacks",
            "kids' backpack",
            "School",
            (14, 45),
            o.KIDS_COLORS,
            o.THREE_SIZES,
            styles="school; preschool; animal; rainbow",
            attributes="""water resistant; light weight; padded straps; reflective trim; zipper closure; bottle
            pocket; easy clean; name tag""",
            uses="the first day of school; day trips; sleepovers; swimming lessons",
            facts="""Room for a lunch box and a folder.; A loop at the top for the coat hook.; Chest clip keeps it in
            place.; Two sections and a front pocket.; Stands up by itself.""",
        ),
        kind(
            "baby blankets",
            "baby blanket",
            "Baby",
            (12, 48),
            o.KIDS_COLORS,
            o.PATTERNS,
            styles="knitted; quilted; swaddle; stroller",
            attributes="""machine washable; pure cotton / bamboo fiber / merino wool; double sided; light weight;
            tumble dry; gift box; extra soft""",
            uses="the stroller; tummy time; the car seat; a baby shower",
            facts="""Bound edges that do not fray.; Big enough to grow with the baby.; Folds small for the bag.;
            Gentle colors.; Keep away from the face of a sleeping baby.""",
        ),
        kind(
            "baby bibs",
            "baby bib set",
            "Baby",
            (7, 24),
            o.KIDS_COLORS,
            o.PACKS,
            styles="crumb catcher; bandana; long sleeved; soft",
            attributes="""easy clean; bpa free; machine washable; food grade silicone / pure cotton; adjustable neck;
            stain resistant; dishwasher safe; quick drying""",
            uses="first meals; teething days; the nursery; eating out",
            facts="""The pocket catches what falls.; Rolls up for the diaper bag.; Soft at the neck.; Suits babies
            from six months.; Bright, cheerful shades.""",
        ),
        kind(
            "lunch boxes",
            "kids' lunch box",
            "School",
            (11, 38),
            o.KIDS_COLORS,
            styles="bento; insulated; school; picnic",
            attributes="""leak proof; bpa free; dishwasher safe; microwave safe; stainless steel / food grade
            silicone; easy open; removable divider; insulated lining""",
            uses="school days; picnics; day trips; snacks on the road",
            facts="""Holds a sandwich, fruit and a treat.; Latches a child can manage.; Fits in most school bags.;
            The lid comes off for washing.; Space for a small ice pack.""",
        ),
    ),
)
