"""Groceries and drinks."""

from __future__ import annotations

from envs.webshop.shipped import options as o
from envs.webshop.shipped.kinds import Department, kind

__all__ = ["DRINKS", "GROCERY"]

_CLOSERS = (
    "Keep in a cool, dry place after opening.",
    "See the label for the full list of ingredients.",
    "Best before date on the bottom.",
    "Packed to order.",
)

GROCERY = Department(
    category="grocery",
    openers=(
        "{This} has an honest taste and nothing it does not need.",
        "{brand} is a family business, and {this} is its pride.",
    ),
    closers=_CLOSERS,
    kinds=(
        kind(
            "granola",
            "granola",
            "Breakfast",
            (5, 22),
            o.BREAKFAST,
            o.FOOD_OZ,
            form="some",
            styles="crunchy; toasted; oat; nutty",
            attributes="""gluten free; low sugar; non gmo; dairy free; whole grain; certified organic; high fiber;
            resealable bag; plant based""",
            uses="yogurt bowls; quick breakfasts; hikes; a late snack",
            facts="""Baked slowly until golden.; Stays crisp in milk.; Large clusters with few crumbs.; About ten
            servings a bag.; Shake the bag before you open it.""",
        ),
        kind(
            "dark chocolate",
            "dark chocolate",
            "Snacks",
            (4, 26),
            o.SWEET,
            o.PACKS,
            form="some",
            styles="fine; thin; baking; single estate",
            attributes="""fair trade; certified organic; dairy free; gluten free; low sugar; non gmo; stone ground;
            gift box; soy free""",
            uses="dessert; baking; a desk drawer; gifts",
            facts="""Snaps cleanly when broken.; Wrapped in foil and paper.; Melts smoothly for sauces.; Best at room
            temperature.; Made from beans of one harvest.""",
        ),
        kind(
            "olive oil",
            "olive oil",
            "Cooking",
            (9, 46),
            o.any_of("Flavor Name", "classic; lemon; garlic; basil; chili", o.FLAVOR, 2, 3),
            o.run_of("Size", "8 oz; 17 oz; 34 oz", o.CAPACITY, 2, 3),
            form="some",
            styles="extra virgin; early harvest; robust; mild",
            attributes="""cold pressed; certified organic; non gmo; kosher certified; glass bottle; pour spout;
            single origin; gluten free""",
            uses="salads; dipping bread; slow roasts; pasta",
            facts="""Green and a little peppery.; Turns cloudy in the cold and clears again.; Pressed within a day of
            picking.; Harvest year on the label.; Keep away from light.""",
        ),
        kind(
            "pasta",
            "pasta",
            "Cooking",
            (3, 20),
            o.PASTAS,
            o.PACKS,
            form="some",
            styles="golden; bronze cut; rustic; quick",
            attributes="""gluten free / whole grain; non gmo; certified organic; high protein; kosher certified; egg
            free; slow dried; low sodium""",
            uses="weeknight dinners; big families; soups; Sunday lunch",
            facts="""Cooks in eight to ten minutes.; The rough surface holds sauce.; Salt the water well.; Four
            servings a box.; Stays firm when reheated.""",
        ),
        kind(
            "hot sauce",
            "hot sauce",
            "Cooking",
            (4, 19),
            o.HEAT,
            o.PACKS,
            form="some",
            styles="table; barrel aged; taco; pepper",
            attributes="""gluten free; sugar free / low sugar; low sodium; small batch; plant based; non gmo; glass
            bottle; kosher certified""",
            uses="eggs; tacos; grilled meat; soups and stews",
            facts="""Thick enough to stay where you put it.; Shake well.; Refrigerate after opening.; A few drops go
            a long way.; Made with ripe red peppers.""",
        ),
        kind(
            "honey",
            "honey",
            "Breakfast",
            (6, 32),
            o.any_of("Flavor Name", "wildflower; orange blossom; clover; cinnamon; ginger", o.FLAVOR, 2, 4),
            o.FOOD_OZ,
            form="some",
            styles="golden; creamy; mountain; set",
            attributes="""raw unfiltered; certified organic; kosher certified; gluten free; glass jar / squeeze
            bottle; non gmo; single origin; small batch""",
            uses="toast; tea; baking; cheese boards",
            facts="""Warm the jar gently if it sets.; Not for babies under one year.; Color changes with the season.;
            Drizzles without dripping.; From one family of beekeepers.""",
        ),
        kind(
            "trail mix",
            "trail mix",
            "Snacks",
            (6, 24),
            o.SAVORY,
            o.FOOD_OZ,
            form="some",
            styles="mountain; tropical; roasted; lunchbox",
            attributes="""gluten free; low sodium; plant based; non gmo; individually wrapped / resealable bag; high
            protein; dairy free; certified organic; kosher certified""",
            uses="day hikes; road trips; school snacks; the office",
            facts="""A handful keeps you going.; Nuts are roasted in small ovens.; Contains tree nuts.; No dust at
            the bottom of the bag.; Good in a backpack on hot days.""",
        ),
        kind(
            "crackers",
            "crackers",
            "Snacks",
            (4, 18),
            o.SAVORY,
            o.PACKS,
            form="pack",
            styles="seeded; thin; rustic; crisp",
            attributes="""gluten free / whole grain; low sodium; non gmo; dairy free; nut free; high fiber;
            resealable bag; plant based; kosher certified""",
            uses="cheese boards; soups; lunch boxes; a movie night",
            facts="""Thin, with a clean snap.; Baked, never fried.; Sturdy enough for dips.; Inner sleeve keeps them
            fresh.; Goes well with soft cheese.""",
        ),
        kind(
            "fruit snacks",
            "fruit snacks",
            "Snacks",
            (5, 22),
            o.FRUIT,
            o.PACKS,
            form="pack",
            styles="chewy; dried; soft; bite size",
            attributes="""gluten free; sugar free / low sugar; non gmo; nut free; real fruit; individually wrapped;
            certified organic; gelatin free; dairy free""",
            uses="lunch boxes; soccer practice; car rides; desk breaks",
            facts="""Soft bite that is not sticky.; Small pouches for small hands.; Color comes from fruit and
            vegetables.; Ten pouches a box.; Keep out of the sun.""",
        ),
        kind(
            "nut butter",
            "nut butter",
            "Breakfast",
            (6, 25),
            o.TEXTURES,
            o.FOOD_OZ,
            form="some",
            styles="peanut; almond; cashew; roasted",
            attributes="""gluten free; sugar free / low sugar; low sodium; palm oil free; stone ground; high protein;
            certified organic; glass jar; plant based; non gmo""",
            uses="toast; smoothies; baking; apple slices",
            facts="""Stir before use.; Oil on top is normal.; Spreads straight from the jar.; Contains nuts.; Good in
            sauces, too.""",
        ),
    ),
)

DRINKS = Department(
    category="drinks",
    openers=(
        "{This} has a clean and rounded taste.",
        "{brand} picks only what it would serve at home.",
    ),
    closers=_CLOSERS,
    kinds=(
        kind(
            "green tea",
            "green tea",
            "Tea",
            (5, 28),
            o.TEAS,
            o.TEA_BAGS,
            form="some",
            styles="spring; mountain; garden; classic",
            attributes="""certified organic; fair trade; caffeine free; non gmo; sugar free; individually wrapped;
            single origin; kosher certified; compostable bags""",
            uses="quiet afternoons; the office; iced tea; after lunch",
            facts="""Pour water that is just below boiling.; Two to three minutes are enough.; Clear, light green
            cup.; Can be brewed twice.; Strings and tags without staples.""",
        ),
        kind(
            "herbal tea",
            "herbal tea",
            "Tea",
            (4, 24),
            o.TEAS,
            o.TEA_BAGS,
            form="some",
            styles="evening; garden; winter; meadow",
            attributes="""caffeine free; certified organic; sugar free; non gmo; individually wrapped; gluten free;
            compostable bags; kosher certified""",
            uses="the last hour of the day; cold afternoons; guests; a thermos",
            facts="""Steep for five minutes.; Good hot or over ice.; Whole leaves and petals.; Needs no sweetener.;
            Smells of a summer garden.""",
        ),
        kind(
            "coffee",
            "coffee",
            "Coffee and Cocoa",
            (8, 40),
            o.ROASTS,
            o.GRINDS,
            form="some",
            styles="morning; house; mountain; breakfast",
            attributes="""fair trade; certified organic; single origin; low acid; small batch; resealable bag; shade
            grown; kosher certified""",
            uses="the first cup; the office pot; a French press; slow Sundays",
            facts="""Roasted twice a week.; A valve keeps the bag fresh.; Use two spoons a cup.; Full body with a
            soft finish.; Roast date on the back.""",
        ),
        kind(
            "hot cocoa",
            "hot cocoa",
            "Coffee and Cocoa",
            (5, 26),
            o.any_of("Flavor Name", "classic; mint; salted caramel; orange; hazelnut", o.FLAVOR, 2, 4),
            o.PACKS,
            form="some",
            styles="rich; double; winter; creamy",
            attributes="""fair trade; gluten free; dairy free; low sugar; certified organic; individually wrapped;
            non gmo; gift box""",
            uses="snow days; camp fires; movie nights; a children's party",
            facts="""Stir into hot milk.; Froths nicely when whisked.; Two heaped spoons a mug.; Deep color and full
            taste.; Works in baking as well.""",
        ),
        kind(
            "sparkling water",
            "sparkling water",
            "Cold Drinks",
            (5, 24),
            o.FRUIT,
            o.PACKS,
            form="some",
            styles="mountain; light; extra fizzy; spring",
            attributes="""sugar free; low sodium; caffeine free; gluten free; glass bottle / recycled cans; non gmo;
            kosher certified; real fruit""",
            uses="hot afternoons; the office fridge; parties; dinner tables",
            facts="""Fine, lively bubbles.; Best served cold.; Nothing but water, bubbles and a hint of taste.;
            Please recycle.; Open slowly after carrying.""",
        ),
    ),
)
