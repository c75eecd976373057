"""Sports, pets and toys."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["PETS", "SPORTS", "TOYS"]

SPORTS = Department(
    category="sports and outdoors",
    openers=(
        "Train, rest or camp: {this} is there when you are.",
        "{brand} makes things that want to be used.",
    ),
    closers=(
        "Have fun out there.",
        "Let it dry before you pack it away.",
        "Made for beginners and old hands alike.",
    ),
    kinds=(
        kind(
            "yoga mats",
            "yoga mat",
            "Fitness",
            (14, 80),
            o.BRIGHT,
            o.THICK,
            styles="studio; travel; alignment; folding",
            attributes="""non slip; eco friendly; extra thick; latex free; carrying strap; easy clean; natural rubber
            / natural cork; double sided; light weight; sweat resistant""",
            uses="morning stretches; hot classes; the living room floor; the park",
            facts="""Lies flat at once.; Long enough for tall people.; Air it before first use.; Marks help you line
            up.; Roll with the top side out.""",
        ),
        kind(
            "dumbbells",
            "dumbbell set",
            "Fitness",
            (16, 120),
            o.BRIGHT,
            o.DUMBBELLS,
            styles="hex; home; studio; round",
            attributes="""non slip; cast iron; rust proof; rubber coating / neoprene coating; ergonomic handle; heavy
            duty; storage rack; floor friendly""",
            uses="home workouts; light cardio; the garage gym; warming up",
            facts="""Sold as a pair.; Does not roll away.; The number is stamped on the end.; Wipe after use.; Quiet
            when set down.""",
        ),
        kind(
            "resistance bands",
            "resistance band set",
            "Fitness",
            (8, 42),
            o.BRIGHT,
            o.BANDS,
            styles="loop; tube; fabric; long",
            attributes="""latex free / natural rubber; non slip; carrying case; door anchor; snap resistant; light
            weight; foam handles; exercise guide; travel size""",
            uses="hotel rooms; leg days; stretching; the office break",
            facts="""Keeps its stretch.; Weighs less than a shoe.; Check for tears before use.; Rinse with water.;
            Packs into a fist.""",
        ),
        kind(
            "camping tents",
            "camping tent",
            "Camping",
            (50, 290),
            o.OUTDOOR,
            o.TENTS,
            styles="dome; cabin; trail; family",
            attributes="""water resistant / water proof; quick setup; mesh vents; wind proof; carrying case; light
            weight; rain fly; carbon fiber / pure aluminum""",
            uses="festival weekends; lake shores; family trips; the back garden",
            facts="""Doors on two sides.; Pockets for phone and torch.; Pegs and cords included.; Pack it dry.;
            Sleeps best with a mat below.""",
        ),
        kind(
            "sleeping bags",
            "sleeping bag",
            "Camping",
            (25, 140),
            o.OUTDOOR,
            o.any_of("Style", "mummy; wide; double", o.TYPE, 2, 2),
            styles="summer; three season; trail; junior",
            attributes="""water resistant; machine washable; light weight; compression sack; soft flannel / recycled
            polyester / down alternative; draft collar; extra warm""",
            uses="cool nights; sleepovers; long treks; the camper van",
            facts="""Zipper does not catch.; A loop to hang it up.; Hood closes with a cord.; Store it loose at
            home.; Fits tall people.""",
        ),
        kind(
            "jump ropes",
            "jump rope",
            "Fitness",
            (6, 32),
            o.BRIGHT,
            styles="speed; beaded; weighted; training",
            attributes="""adjustable length; tangle free; foam handles / wooden handles / ergonomic handle; ball
            bearings; steel cable; light weight; non slip; carrying case""",
            uses="warm-ups; boxing; the school yard; travel",
            facts="""Turns without a twist.; Cut it to your height.; Fits in a jacket.; For adults and older
            children.; Use on a smooth floor.""",
        ),
        kind(
            "bike helmets",
            "bike helmet",
            "Cycling",
            (20, 120),
            o.BRIGHT,
            o.THREE_SIZES,
            styles="road; commuter; mountain; urban",
            attributes="""impact resistant; light weight; adjustable strap; air vents; removable visor; reflective
            trim; rear light; washable pads; magnetic buckle""",
            uses="the daily commute; forest trails; scooters; weekend tours",
            facts="""A dial at the back sets the fit.; Sits low on the head.; Measure your head first.; Replace it
            after a crash.; Smooth shell, easy to wipe.""",
        ),
        kind(
            "camping lanterns",
            "camping lantern",
            "Camping",
            (11, 58),
            o.OUTDOOR,
            o.PACKS,
            styles="pop up; classic; mini; trail",
            attributes="""rechargeable battery / battery powered / solar powered; water resistant; dimmable light;
            hanging hook; foldable design; heavy duty; light weight; magnetic base; usb port""",
            uses="tents; power cuts; night fishing; the porch",
            facts="""Lights a table for six.; Three levels of light.; Stands or hangs.; Easy to find in the dark.;
            Closes to half its height.""",
        ),
    ),
)

PETS = Department(
    category="pet supplies",
    openers=(
        "Happy pets, calm owners: that is what {this} is for.",
        "{brand} shares its office with two dogs and a cat.",
    ),
    closers=(
        "Tested at home with our own animals.",
        "Loved by four-legged testers.",
        "Packed with care in our small workshop.",
    ),
    kinds=(
        kind(
            "dog beds",
            "dog bed",
            "Dogs",
            (20, 130),
            o.SOFT_HOME,
            o.THREE_SIZES,
            styles="donut; sofa; crate; raised",
            attributes="""machine washable / washable cover; memory foam / orthopedic foam; non slip; chew resistant;
            extra soft; water resistant; faux fur; older dogs / small dogs / large dogs; odor resistant""",
            uses="afternoon naps; the crate; the car; a cold floor",
            facts="""A rim to rest the chin on.; Low front for short legs.; Fluff it up after unpacking.; Hair
            brushes off.; Keeps its shape.""",
        ),
        kind(
            "dog leashes",
            "dog leash",
            "Dogs",
            (7, 40),
            o.BRIGHT,
            o.LEADS,
            styles="rope; training; round; city",
            attributes="""heavy duty; reflective trim; padded handle; genuine leather / braided nylon; chew
            resistant; water resistant; small dogs / large dogs; light weight; bag holder""",
            uses="evening walks; puppy school; runs; busy streets",
            facts="""The clip turns freely.; Sewn, not glued.; A ring for keys.; Kind to the hands.; Rinse off salt
            and sand.""",
        ),
        kind(
            "dog treats",
            "dog treats",
            "Dogs",
            (5, 30),
            o.MEATY,
            o.FOOD_OZ,
            form="pack",
            styles="training; crunchy; soft; dental",
            attributes="""grain free; non gmo; gluten free; small batch; resealable bag; low fat; single ingredient;
            slow baked; small dogs / large dogs""",
            uses="training; rainy days; brave visits to the vet; a walk",
            facts="""Small enough to break.; Does not crumble in the pocket.; Keep fresh water near.; Not a full
            meal.; Smells good to dogs, fair to people.""",
        ),
        kind(
            "cat toys",
            "cat toy set",
            "Cats",
            (6, 30),
            o.BRIGHT,
            o.PACKS,
            styles="feather; mouse; ball; teaser",
            attributes="""non toxic; chew resistant; organic catnip; battery powered / rechargeable battery; natural
            sisal; soft plush; silent movement; indoor cats; hand made""",
            uses="rainy afternoons; lazy cats; kittens; two cats at once",
            facts="""Light enough to chase.; Put it away after play.; No small parts.; Mixed shapes.; Keeps paws
            busy.""",
        ),
        kind(
            "pet bowls",
            "pet bowl",
            "Dogs and Cats",
            (7, 38),
            o.STONEWARE,
            o.THREE_SIZES,
            styles="raised; slow feeder; double; travel",
            attributes="""dishwasher safe; non slip; stainless steel / ceramic body / food grade silicone; spill
            resistant; bpa free; rust proof; easy clean""",
            uses="dinner time; messy drinkers; the car; cats and dogs",
            facts="""Sits firmly on tiles.; Right height for most pets.; Wide rim, easy to lift.; Rinse daily.; Holds
            a full meal.""",
        ),
        kind(
            "cat scratchers",
            "cat scratcher",
            "Cats",
            (12, 90),
            o.any_of("Color", "gray; beige; brown; white; green", o.COLOR, 2, 3),
            o.SHAPES,
            styles="post; lounge; corner; wave",
            attributes="""natural sisal / recycled paper; solid wood; easy assembly; heavy duty; non slip; organic
            catnip; hanging ball; indoor cats; double sided""",
            uses="saving the sofa; stretching; a sunny window; kittens",
            facts="""Wide foot that does not tip.; Big enough to stretch out.; Vacuum the crumbs.; Quiet at night.;
            Most cats take to it at once.""",
        ),
    ),
)

TOYS = Department(
    category="toys and games",
    openers=(
        "Sit down and play: {this} needs no more than a table.",
        "{brand} makes things to play with for years.",
    ),
    closers=(
        "Store all parts in the box.",
        "A grown-up may help at first.",
        "Fun for children and adults.",
    ),
    kinds=(
        kind(
            "building blocks",
            "building block set",
            "Building",
            (12, 70),
            o.PACKS,
            o.any_of("Color", "natural; rainbow; pastel", o.COLOR, 2, 2),
            styles="castle; city; classic; farm",
            attributes="""non toxic; solid wood / recycled plastic; rounded edges; storage box / storage bag; easy
            clean; screen free; hand painted; bpa free""",
            uses="rainy days; kindergarten; small builders; grandparents' houses",
            facts="""Big pieces for small hands.; Towers stand up well.; From three years.; Ideas on a leaflet.;
            Mixes with other sets.""",
        ),
        kind(
            "jigsaw puzzles",
            "jigsaw puzzle",
            "Games",
            (9, 36),
            o.SCENES,
            o.PIECES,
            styles="panorama; art; nature; winter",
            attributes="""thick board; recycled paper; poster included; glare free; storage bag; screen free; family
            night; snug fit; dust free""",
            uses="long evenings; holidays; a quiet table; gifts",
            facts="""No two parts are the same.; Rich, clear print.; Glue it and hang it.; Sort the edges first.; Box
            shows the picture.""",
        ),
        kind(
            "plush toys",
            "plush toy",
            "Soft Toys",
            (9, 42),
            o.ANIMALS,
            o.THREE_SIZES,
            styles="cuddle; sleepy; giant; pocket",
            attributes="""machine washable; extra soft; non toxic; recycled polyester / pure cotton / faux fur; gift
            box; hand made; weighted body; embroidered eyes; tumble dry""",
            uses="bedtime; a newborn; long car rides; collectors",
            facts="Sits up by itself.; Seams are tight.; For all ages.; Easy to hug.; Comes with a name card.",
        ),
        kind(
            "board games",
            "board game",
            "Games",
            (14, 58),
            o.any_of("Style", "family; travel; junior; deluxe", o.TYPE, 2, 3),
            styles="word; strategy; farm; treasure",
            attributes="""family night; easy learn; recycled paper; solid wood; screen free; storage bag; magnetic
            pieces; quick play; two players""",
            uses="game night; holidays; mixed ages; rainy weekends",
            facts="""Rules on two pages.; Each round is different.; For small and larger groups.; Teaches patience.;
            Sturdy box with a tray.""",
        ),
        kind(
            "craft kits",
            "craft kit",
            "Crafts",
            (9, 40),
            o.CRAFTS,
            styles="starter; party; deluxe; rainbow",
            attributes="""non toxic; screen free; easy learn; storage box; washable colors; picture guide; gift box;
            pure cotton; recycled paper""",
            uses="birthday parties; after school; rainy weekends; two friends",
            facts="""All parts are in the box.; Enough for several projects.; From six years.; Cover the table
            first.; Results to be proud of.""",
        ),
    ),
)
