"""Beauty and personal care."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["BEAUTY"]


BEAUTY = Department(
    category="beauty",
    openers=(
        "{brand} makes {this} in small lots.",
        "{This} is a small treat at the start of the day.",
    ),
    closers=(
        "Store in a cool, dry place.",
        "Made in small runs.",
        "A nice little gift as well.",
        "Comes in a plain paper box with very little plastic.",
    ),
    kinds=(
        kind(
            "shampoo",
            "shampoo",
            "Hair",
            (6, 28),
            o.FRESH,
            o.SMALL_OZ,
            form="some",
            styles="daily; repair; clarifying; volume; moisture",
            attributes="""sulfate free; paraben free; cruelty free; plant based; dry hair / curly hair / fine hair /
            colored hair; coconut oil / argan oil / tea tree / aloe vera""",
            uses="everyday washing; a quick morning shower; weekly deep cleaning; the whole family",
            facts="""Work a small amount into wet hair and rinse well.; Rich lather that rinses out in seconds.; The
            flip cap opens with one hand.; Pairs with the conditioner of the same line.; The bottle stands on its cap
            to the last drop.""",
        ),
        kind(
            "hair conditioner",
            "hair conditioner",
            "Hair",
            (6, 30),
            o.FRESH,
            o.SMALL_OZ,
            form="some",
            styles="daily; repair; smoothing; deep; moisture",
            attributes="""sulfate free; paraben free; cruelty free; silicone free; plant based; dry hair / curly hair
            / fine hair / colored hair; coconut oil / argan oil / shea butter / aloe vera""",
            uses="everyday combing; long hair; weekend care; hair that tangles",
            facts="""Leave in for two minutes, then rinse.; Makes wet hair easy to comb.; A coin-sized amount is
            enough for shoulder length hair.; Light texture that does not weigh hair down.; Pump sold separately.""",
        ),
        kind(
            "body lotion",
            "body lotion",
            "Skin",
            (5, 26),
            o.FRESH,
            o.SMALL_OZ,
            form="some",
            styles="daily; rich; light; whipped; gentle",
            attributes="""paraben free; cruelty free; alcohol free; fast absorbing; plant based; dry skin / sensitive
            skin / oily skin; coconut oil / shea butter / aloe vera / vitamin e; long lasting""",
            uses="the minutes after a shower; winter days; hands and elbows; the bedside table",
            facts="""Spread over damp skin and let it sink in.; Leaves no greasy film on clothes.; The pump locks for
            the suitcase.; For use on the outside of the body only.; Light cream color with nothing added to change
            it.""",
        ),
        kind(
            "face cream",
            "face cream",
            "Skin",
            (8, 48),
            o.TINY_OZ,
            form="some",
            styles="day; night; light; rich; daily",
            attributes="""paraben free; cruelty free; fragrance free; fast absorbing; dry skin / sensitive skin /
            oily skin; hyaluronic acid / vitamin e / aloe vera / green tea; plant based; alcohol free""",
            uses="morning and evening; cold weather; wearing under makeup; a simple routine",
            facts="""A pea-sized amount covers face and neck.; Comes with a small spatula.; The jar is glass with a
            screw lid.; Try it on a small area of the arm first.; Avoid contact with the eyes.""",
        ),
        kind(
            "lip balm",
            "lip balm",
            "Skin",
            (3, 14),
            o.FRUIT,
            o.PACKS,
            styles="tinted; clear; daily; winter",
            attributes="""cruelty free; paraben free; shea butter / coconut oil / vitamin e / natural beeswax; plant
            based; long lasting; gluten free; travel size""",
            uses="coat pockets; windy days; ski trips; desk drawers",
            facts="""Glides on without a mirror.; Twist base that stays shut in a pocket.; Smooth shine that is not
            sticky.; Reapply as often as you like.; Each stick lasts for weeks.""",
        ),
        kind(
            "hand soap",
            "hand soap",
            "Washing",
            (4, 18),
            o.FRESH,
            o.PACKS,
            form="some",
            styles="foaming; liquid; kitchen; gentle; garden",
            attributes="""paraben free; sulfate free; cruelty free; plant based; sensitive skin / dry skin; tea tree
            / aloe vera / olive oil; recycled bottle; biodegradable formula""",
            uses="the kitchen sink; a guest bathroom; busy families; the workshop",
            facts="""One press of the pump is enough.; Rinses off without residue.; Clear bottle, so you see when it
            runs low.; Fits any soap dish or counter.; Mild enough for frequent washing.""",
        ),
        kind(
            "body wash",
            "body wash",
            "Washing",
            (5, 22),
            o.FRESH,
            o.SMALL_OZ,
            form="some",
            styles="creamy; daily; sport; gel; fresh",
            attributes="""sulfate free; paraben free; cruelty free; dry skin / sensitive skin / oily skin; shea
            butter / coconut oil / tea tree / aloe vera; plant based; biodegradable formula""",
            uses="the morning shower; after the gym; the gym bag; the whole family",
            facts="""Pour on a sponge or straight into the hand.; Thick gel that does not run through the fingers.;
            Rinses clean in hard and soft water.; The hook cap hangs on a shower rail.; Made for skin, not for hair.""",
        ),
        kind(
            "eau de parfum",
            "eau de parfum",
            "Fragrance",
            (18, 95),
            o.FLORAL,
            o.TINY_OZ,
            form="some",
            styles="evening; summer; everyday; classic",
            attributes="long lasting; cruelty free; paraben free; spray bottle / roll on; gift box; vegan formula",
            uses="evenings out; office days; a wedding; a gift to a friend",
            facts="""Hold a hand's width away from the skin.; Heavy glass with a metal cap.; The scent grows softer
            after an hour.; Keep out of direct sun.; Flammable: keep away from flame.""",
        ),
        kind(
            "nail polish",
            "nail polish",
            "Make-up",
            (4, 18),
            o.SHADES,
            styles="gel look; matte; glossy; classic",
            attributes="""quick drying; long lasting; cruelty free; chip resistant; vegan formula; wide brush /
            precision brush; high shine""",
            uses="weekend manicures; parties; hands and toes; beginners",
            facts="""Two thin coats give the best result.; Shake well before use.; Wipes off with any common
            remover.; The cap is shaped for a steady grip.; Shades look a little darker when dry.""",
        ),
        kind(
            "makeup brushes",
            "makeup brush set",
            "Make-up",
            (8, 45),
            o.VANITY,
            styles="travel; starter; studio; compact",
            attributes="""synthetic bristles; cruelty free; easy clean; bamboo handles / wooden handles / metal
            handles; storage pouch / brush stand; soft touch; travel size""",
            uses="powder and blush; first tries; quick touch-ups; the dressing table",
            facts="""Heads for powder, eyes and lips.; Every brush is marked with its use.; Dry flat with the heads
            over the edge of a table.; The ferrules are crimped twice.; Keeps its shape in the wash.""",
        ),
        kind(
            "hair brushes",
            "hair brush",
            "Hair",
            (5, 30),
            o.VANITY,
            o.BRISTLES,
            styles="paddle; round; pocket; vented",
            attributes="""anti static; bamboo handles / wooden handles / ergonomic handle; curly hair / fine hair /
            thick hair; easy clean; heat resistant; travel size""",
            uses="tangles after a swim; blow drying; long hair; children who hate combing",
            facts="""Rounded tips are kind to the scalp.; The cushion lets air out through a small hole.; Take out
            loose hair with a comb.; Weighs little more than a letter.; Hangs from a loop at the end.""",
        ),
        kind(
            "hair dryers",
            "hair dryer",
            "Hair",
            (19, 120),
            o.VANITY,
            styles="compact; salon; folding; quiet",
            attributes="""fast drying; light weight; cool shot; foldable handle; ionic technology; diffuser included;
            low noise; dual voltage""",
            uses="busy mornings; thick hair; small bathrooms; trips abroad",
            facts="""Three heat settings and two speeds.; The filter at the back twists off for cleaning.; Cord of 6
            ft with a hanging loop.; Switches itself off when too hot.; Comes with a narrow nozzle.""",
        ),
    ),
)
