"""Kitchen, garden and office."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["GARDEN", "KITCHEN", "OFFICE"]


KITCHEN = Department(
    category="kitchen",
    openers=(
        "Cooks who like plain, useful things will enjoy {this}.",
        "{brand} has tools that earn their place in a drawer.",
    ),
    closers=(
        "Wash before first use.",
        "Comes in a plain cardboard box.",
        "Made for years of daily use.",
        "A good present for a first kitchen.",
    ),
    kinds=(
        kind(
            "frying pans",
            "frying pan",
            "Cooking and Baking",
            (18, 110),
            o.KITCHEN,
            o.PANS,
            styles="everyday; deep; chef; omelette",
            attributes="""non stick; cast iron / carbon steel / stainless steel / dishwasher safe; oven safe;
            induction ready; heat resistant; pfoa free; lid included; stay cool""",
            uses="eggs; quick dinners; searing; camp kitchens",
            facts="""Heats evenly from edge to edge.; Pours well from both sides.; Hangs from the loop in the
            handle.; Use wooden or silicone tools.; Preheat on medium.""",
        ),
        kind(
            "kitchen knives",
            "chef knife",
            "Tools",
            (15, 120),
            o.run_of("Size", "6 inch; 8 inch; 10 inch", o.LENGTH, 2, 3),
            styles="forged; santoku; classic; carving",
            attributes="""stainless steel / carbon steel; ergonomic handle / wooden handle; full tang; rust proof;
            razor sharp; gift box; blade guard; non slip""",
            uses="onions and herbs; Sunday roasts; everyday chopping; a cooking class",
            facts="""Well balanced in the hand.; Dry after washing.; Sharpen it twice a year.; Spine is rounded.;
            Cuts ripe tomatoes without pressure.""",
        ),
        kind(
            "cutting boards",
            "cutting board",
            "Tools",
            (10, 65),
            o.BOARDS,
            styles="carving; cheese; reversible; everyday",
            attributes="""bamboo wood / solid wood / recycled plastic; juice groove; non slip; knife friendly; bpa
            free; easy clean; hanging hole; heavy duty""",
            uses="bread and cheese; vegetables; carving; serving at the table",
            facts="""Does not slide about.; Oil it now and then.; Stands on edge to dry.; Thick enough to last.; Use
            both sides.""",
        ),
        kind(
            "water bottles",
            "water bottle",
            "Drinkware",
            (10, 48),
            o.BRIGHT,
            o.BOTTLES,
            styles="wide mouth; sport; slim; school",
            attributes="""leak proof; bpa free; stainless steel / recycled plastic; double wall; dishwasher safe;
            straw lid / flip lid; easy clean; carrying strap; sweat free""",
            uses="the gym; school; long hikes; the desk",
            facts="""Fits most cup holders.; Opens with one thumb.; Takes ice cubes.; Does not keep the taste of
            juice.; Hand wash the lid.""",
        ),
        kind(
            "coffee mugs",
            "coffee mug",
            "Drinkware",
            (8, 38),
            o.STONEWARE,
            o.PACKS,
            styles="diner; speckled; tall; camp",
            attributes="""microwave safe; dishwasher safe; hand made; ceramic body / double wall / recycled glass;
            large handle; matte finish / glazed finish; lead free; chip resistant""",
            uses="the first coffee; tea with friends; the office; soup",
            facts="""Holds a generous cup.; Stacks two high.; Sits flat and steady.; Pleasant to hold.; The rim is
            thin and smooth.""",
        ),
        kind(
            "food storage containers",
            "food storage container set",
            "Storage",
            (14, 60),
            o.KITCHEN,
            o.PACKS,
            styles="glass; pantry; stacking; meal prep",
            attributes="""leak proof; bpa free; microwave safe; dishwasher safe; freezer safe; oven safe; snap lid;
            stackable design; stain resistant""",
            uses="leftovers; packed lunches; cereal and flour; batch cooking",
            facts="""Lids all fit the same way.; Nest inside each other when empty.; See what is inside.; Rinse lids
            by hand.; Square shape saves room.""",
        ),
        kind(
            "electric kettles",
            "electric kettle",
            "Appliances",
            (22, 95),
            o.KITCHEN,
            o.KETTLES,
            styles="gooseneck; retro; travel; glass",
            attributes="""auto shutoff; stainless steel / tempered glass; fast boiling; cordless base; bpa free; stay
            cool; temperature control; water window""",
            uses="tea; pour-over coffee; instant soup; the office kitchen",
            facts="""Lifts off from any side.; The lid opens wide for filling.; Lime filter in the spout.; Cord winds
            up below.; Quiet click when done.""",
        ),
        kind(
            "baking sheets",
            "baking sheet",
            "Cooking and Baking",
            (9, 48),
            o.BOARDS,
            o.PACKS,
            styles="rimmed; cookie; jelly roll; cooling",
            attributes="""non stick; carbon steel / stainless steel / pure aluminum; dishwasher safe; warp resistant;
            heavy duty; rust proof; easy clean; oven safe; pfoa free""",
            uses="cookies; roast vegetables; pizza night; holiday baking",
            facts="""Browns evenly.; Fits standard ovens.; Rolled edges are strong.; Line with paper for sticky
            dough.; Stacks flat.""",
        ),
        kind(
            "kitchen towels",
            "kitchen towel set",
            "Tools",
            (8, 32),
            o.SOFT_HOME,
            o.PACKS,
            styles="waffle; striped; tea; farmhouse",
            attributes="""machine washable; pure cotton / linen blend / bamboo fiber; quick drying; highly absorbent;
            lint free; hanging loop; fade resistant; extra thick""",
            uses="drying glasses; hot handles; the bread basket; spills",
            facts="""Better with every wash.; Large enough for a big pot.; Hems do not curl.; Bleach only when
            white.; Pretty on the oven door.""",
        ),
    ),
)

GARDEN = Department(
    category="patio and garden",
    openers=(
        "Less time on chores and more in the garden with {this}.",
        "{brand} knows gardens.",
    ),
    closers=(
        "Store it dry over the winter.",
        "Made for many seasons outdoors.",
        "Rinse off dirt at the end of the season.",
    ),
    kinds=(
        kind(
            "garden hoses",
            "garden hose",
            "Garden Tools",
            (18, 90),
            o.OUTDOOR,
            o.HOSES,
            styles="expandable; soaker; coiled; flat",
            attributes="""kink free; heavy duty; light weight; brass fittings; uv resistant; lead free; leak proof;
            spray nozzle; burst proof""",
            uses="vegetable beds; the front lawn; washing the car; roof terraces",
            facts="""Drains by itself.; Fits a standard tap.; Winds up without a fight.; Spare washers included.;
            Turn off the tap after use.""",
        ),
        kind(
            "planters",
            "planter pot",
            "Plants and Birds",
            (9, 60),
            o.STONEWARE,
            o.POTS,
            styles="hanging; square; ribbed; window",
            attributes="""drainage holes; ceramic body / solid wood / recycled plastic; weather resistant; self
            watering; saucer included; light weight; fade resistant; indoor outdoor""",
            uses="herbs; balconies; the window sill; small trees",
            facts="""Roots have room to grow.; Easy to move about.; Looks like stone.; Put a few pebbles at the
            bottom.; Plant not included.""",
        ),
        kind(
            "string lights",
            "string lights",
            "Patio",
            (12, 55),
            o.GLOW,
            o.STRINGS,
            form="set",
            styles="globe; fairy; café; icicle",
            attributes="""water resistant / water proof; solar powered / battery powered / usb powered; dimmable
            light; remote control; shatter proof; energy saving; timer function; outdoor use""",
            uses="the patio; a wedding; the balcony; the children's room",
            facts="""Bulbs stay cool.; Eight light modes.; Clips are easy to hide.; Connect two in a row.; Stores on
            the card it came on.""",
        ),
        kind(
            "bird feeders",
            "bird feeder",
            "Plants and Birds",
            (12, 58),
            o.OUTDOOR,
            styles="window; tube; hopper; platform",
            attributes="""squirrel proof; weather resistant; easy clean; easy fill; solid wood / recycled plastic /
            metal mesh; drainage holes; hanging hook; suction cups; rust proof""",
            uses="finches; a kitchen window; winter gardens; young bird watchers",
            facts="""Holds enough seed for a week.; Perches on both sides.; The roof keeps seed dry.; Shows how much
            is left.; Seed not included.""",
        ),
        kind(
            "garden gloves",
            "garden gloves",
            "Garden Tools",
            (6, 28),
            o.BRIGHT,
            o.THREE_SIZES,
            form="pair",
            styles="rose; weeding; work; planting",
            attributes="""thorn proof; water resistant; machine washable; non slip; genuine leather / bamboo fiber /
            pure cotton; long cuff; touch screen; puncture resistant""",
            uses="roses; weeding; planting bulbs; raking leaves",
            facts="""Snug at the wrist.; Thin enough to feel seeds.; Dries overnight.; Sold as a pair.; Grips wet
            handles.""",
        ),
        kind(
            "patio umbrellas",
            "patio umbrella",
            "Patio",
            (38, 190),
            o.SOFT_HOME,
            o.UMBRELLAS,
            styles="market; beach; tilting; cantilever",
            attributes="""uv resistant; wind vent; crank handle; push button; solid wood / pure aluminum; rust proof;
            solar powered""",
            uses="long lunches; the pool; a small balcony; café tables",
            facts="""Eight sturdy ribs.; Base sold separately.; Fits a table hole.; Close it in strong wind.; Ties up
            with a strap.""",
        ),
    ),
)

OFFICE = Department(
    category="office",
    openers=(
        "A tidy desk starts with {this}.",
        "{brand} thinks of the small things in a working day.",
    ),
    closers=(
        "Packed without plastic.",
        "A practical gift for students.",
        "Looks tidy on any desk.",
    ),
    kinds=(
        kind(
            "notebooks",
            "notebook",
            "Paper",
            (6, 30),
            o.COVER,
            o.NOTEBOOKS,
            o.RULINGS,
            styles="travel; project; daily; sketch",
            attributes="""hard cover / soft cover; lay flat; acid free; recycled paper; elastic closure; ribbon
            bookmark; thick paper; back pocket; numbered pages; faux leather""",
            uses="lectures; morning pages; meetings; travel notes",
            facts="""About 200 pages.; Ink does not show through.; Sewn, not glued.; Rounded corners.; An index at
            the front.""",
        ),
        kind(
            "gel pens",
            "gel pen set",
            "Writing",
            (5, 26),
            o.INK,
            o.PEN_COUNT,
            styles="retractable; slim; classic; capped",
            attributes="""fine point / bold point / medium point; quick drying; smear proof; refillable ink; comfort
            grip; acid free; recycled plastic; left handed""",
            uses="taking notes; journals; the classroom; signing letters",
            facts="""Starts without a scratch.; Clip on every pen.; Does not skip.; Store with the tip down.; Good on
            smooth paper.""",
        ),
        kind(
            "desk organizers",
            "desk organizer",
            "Desk",
            (10, 52),
            o.any_of("Color", "black; white; silver; rose gold; natural; walnut", o.COLOR, 2, 4),
            styles="rotating; stacking; mesh; drawer",
            attributes="""bamboo wood / metal mesh / faux leather; space saving; easy assembly; non slip; phone
            stand; adjustable shelves; heavy duty; cable management; home office""",
            uses="pens and cards; a shared desk; homework; mail",
            facts="""Room for folders at the back.; Edges are smooth.; Keeps small things in sight.; Wipes clean.;
            Takes little of the desk.""",
        ),
        kind(
            "planners",
            "weekly planner",
            "Paper",
            (8, 34),
            o.COVER,
            o.NOTEBOOKS,
            styles="undated; academic; goal; family",
            attributes="""hard cover / soft cover; spiral bound; lay flat; recycled paper; elastic closure; sticker
            sheets; thick paper; back pocket; ribbon bookmark""",
            uses="busy weeks; students; small firms; meal plans",
            facts="""A week on two pages.; Space for notes.; Start any month.; Tabs for each month.; Takes pen and
            pencil.""",
        ),
        kind(
            "desk mats",
            "desk mat",
            "Desk",
            (9, 42),
            o.LEATHER,
            o.THREE_SIZES,
            styles="felt; double tone; slim; gaming",
            attributes="""non slip; water resistant; faux leather / genuine leather / merino wool / natural cork;
            double sided; easy clean; stitched edges; scratch resistant; extra thick""",
            uses="keyboard and mouse; writing; crafts; glass tables",
            facts="""Lies flat within a day.; The mouse glides well.; Keeps cups from clinking.; Rolls up for
            moving.; Wipe with a soft cloth.""",
        ),
    ),
)
