"""Options that products offer, and how shoppers speak of them.

Values of one option are far enough apart for the reward's fuzzy comparison to tell them apart (``6 oz`` and ``8 oz``,
where ``6 ounce`` and ``8 ounce`` would count as equal); clothes in letters are the exception, as in the original.
"""

from __future__ import annotations

from envs.webshop.shipped.kinds import Option, OptionPhrases, split

COLOR = OptionPhrases(
    before=("%s", "%s", "%s colored"),
    after=("in %s", "in the color %s", "in %s color"),
    clause=("the color should be %s", "i want it in %s", "make it %s", "i like %s"),
)
FINISH = OptionPhrases(
    before=("%s",), after=("in %s", "with a %s finish"), clause=("the finish should be %s", "i want the %s one")
)
SIZE = OptionPhrases(
    before=("size %s",),
    after=("in size %s", "in a size %s"),
    clause=("my size is %s", "the size should be %s", "i wear a size %s"),
)
WAIST = OptionPhrases(after=("with a %s waist", "in size %s"), clause=("my waist size is %s", "the size should be %s"))
DIMENSIONS = OptionPhrases(
    before=("%s",),
    after=("in the %s size", "in size %s"),
    clause=("the size should be %s", "i need the %s size", "it has to be the %s one"),
)
FLAVOR = OptionPhrases(
    before=("%s flavored", "%s"),
    after=("in %s flavor", "with %s flavor"),
    clause=("the flavor should be %s", "i like the %s flavor"),
)
SCENT = OptionPhrases(
    before=("%s scented",),
    after=("with %s scent", "in the %s scent"),
    clause=("the scent should be %s", "i prefer the %s scent"),
)
PACK = OptionPhrases(after=("in a %s", "as a %s"), clause=("it should be a %s", "i want the %s", "make that the %s"))
COUNT = OptionPhrases(after=("in the %s size", "in the %s box"), clause=("i want the %s box", "the size should be %s"))
LENGTH = OptionPhrases(
    before=("%s",),
    after=("that is %s long", "with a length of %s"),
    clause=("it should be %s long", "the length is %s"),
)
CAPACITY = OptionPhrases(
    before=("%s",), after=("with a capacity of %s", "in the %s size"), clause=("it should hold %s", "i need the %s one")
)
WEIGHT = OptionPhrases(
    before=("%s",), after=("that weighs %s", "in the %s size"), clause=("the weight should be %s", "i need the %s one")
)
TYPE = OptionPhrases(
    before=("%s",),
    after=("of the %s kind", "in the %s version"),
    clause=("i want the %s one", "it should be the %s kind"),
)
SHAPE = OptionPhrases(before=("%s",), after=("in a %s shape",), clause=("the shape should be %s", "i want the %s one"))
PATTERN = OptionPhrases(
    before=("%s",), after=("with a %s pattern",), clause=("the pattern should be %s", "i like %s best")
)
PICTURE = OptionPhrases(after=("with the %s picture",), clause=("i want the %s picture", "the picture should be %s"))
ACTIVITY = OptionPhrases(before=("%s",), after=("for %s",), clause=("it should be the one for %s", "it is for %s"))
SCALE = OptionPhrases(
    before=("size %s",),
    after=("in size %s", "in the %s size"),
    clause=("the size should be %s", "i need the %s one"),
)


def any_of(name: str, values: str, phrases: OptionPhrases, low: int = 2, high: int = 5) -> Option:
    """An option of which a product offers any ``low`` to ``high`` values."""
    return Option(name=name, values=split(values), low=low, high=high, in_a_row=False, phrases=phrases)


def run_of(name: str, values: str, phrases: OptionPhrases, low: int = 2, high: int = 4) -> Option:
    """An option of which a product offers ``low`` to ``high`` neighbouring values."""
    return Option(name=name, values=split(values), low=low, high=high, in_a_row=True, phrases=phrases)


CLOTHES = any_of(
    "Color", "black; white; navy; gray; burgundy; olive; teal; khaki; pink; purple; mustard; rust; sky blue", COLOR
)
KIDS_COLORS = any_of("Color", "sky blue; pink; mint; yellow; lavender; coral; gray; red; orange", COLOR)
SHOE_COLORS = any_of("Color", "black; white; brown; gray; navy; tan; olive; red; burgundy", COLOR)
SOFT_HOME = any_of(
    "Color", "white; gray; beige; navy; sage green; teal; blush; charcoal; mustard; ivory; plum; rust", COLOR, 2, 6
)
WOOD = any_of("Color", "walnut; oak; espresso; white; black; cherry; natural; gray", FINISH, 2, 4)
METAL = any_of("Color", "black; brass; copper; silver; bronze; white; gold", FINISH, 2, 4)
TECH = any_of("Color", "black; white; silver; rose gold; blue; red; green; purple", COLOR, 2, 4)
BRIGHT = any_of("Color", "red; blue; green; yellow; orange; purple; pink; black; white", COLOR)
VANITY = any_of("Color", "black; pink; rose gold; white; purple", COLOR, 2, 4)
KITCHEN = any_of("Color", "black; red; teal; cream; gray; navy; green; yellow; copper", COLOR)
OUTDOOR = any_of("Color", "green; orange; blue; gray; khaki; black; red", COLOR, 2, 4)
STONEWARE = any_of("Color", "white; terracotta; sage green; charcoal; navy; sand; blush; black", COLOR, 2, 4)
SHADES = any_of("Color", "rose; coral; plum; nude; ruby red; mauve; berry; peach; wine", COLOR, 3, 6)
INK = any_of("Color", "black; blue; red; green; purple; assorted", COLOR, 2, 4)
COVER = any_of("Color", "black; navy; burgundy; teal; brown; pink; forest green; gray", COLOR, 2, 4)
LEATHER = any_of("Color", "black; brown; tan; burgundy; navy; olive", COLOR, 2, 4)
GLOW = any_of("Color", "warm white; multicolor; blue; purple; amber", COLOR, 2, 4)

# Sizes are in order: a product offers neighbours (see `run_of`).
LETTERS = run_of("Size", "x-small; small; medium; large; x-large; xx-large; 3x-large", SIZE, 3, 6)
KIDS_SIZES = run_of("Size", "2-3 years; 4-5 years; 6-7 years; 8-9 years; 10-11 years", SCALE, 2, 4)
WOMEN_SHOES = run_of("Size", "5; 6; 7; 8; 9; 10; 11", SIZE, 3, 6)
MEN_SHOES = run_of("Size", "7; 8; 9; 10; 11; 12; 13", SIZE, 3, 6)
WAISTS = run_of("Size", "28; 30; 32; 34; 36; 38; 40", WAIST, 3, 5)
BEDS = run_of("Size", "twin; full; queen; king", DIMENSIONS, 2, 4)
PILLOWS = run_of("Size", "regular; queen; king", DIMENSIONS, 2, 3)
CUSHIONS = run_of("Size", "14x26 inch; 16x16 inch; 18x18 inch; 20x20 inch; 24x24 inch", DIMENSIONS, 2, 4)
THROWS = run_of("Size", "30x40 inch; 50x60 inch; 60x80 inch; 90x108 inch", DIMENSIONS, 2, 3)
RUGS = run_of("Size", "2x3 ft; 3x5 ft; 4x6 ft; 5x8 ft; 8x10 ft; 9x12 ft", DIMENSIONS, 2, 5)
DRAPES = run_of("Size", "42x45 inch; 42x63 inch; 52x84 inch; 52x96 inch", DIMENSIONS, 2, 4)
PRINTS = run_of("Size", "5x7 inch; 8x10 inch; 11x14 inch; 16x20 inch; 24x36 inch", DIMENSIONS, 2, 4)
THREE_SIZES = run_of("Size", "small; medium; large", SCALE, 2, 3)
PANS = run_of("Size", "small (8 inch); medium (10 inch); large (12 inch)", DIMENSIONS, 2, 3)
BOARDS = run_of("Size", "small (9x6 inch); medium (12x9 inch); large (18x12 inch)", DIMENSIONS, 2, 3)
POTS = run_of("Size", "small (4 inch); medium (7 inch); large (12 inch)", DIMENSIONS, 2, 3)
DISCS = run_of("Size", "small (10 inch); medium (14 inch); large (24 inch)", DIMENSIONS, 2, 3)
STOOLS = run_of("Size", "counter height; bar height", DIMENSIONS, 2, 2)
SCREENS = run_of("Size", "13.3 inch; 14.1 inch; 15.6 inch", DIMENSIONS, 2, 3)
THICK = run_of("Size", "4 mm; 6 mm; 10 mm", DIMENSIONS, 2, 3)
TENTS = run_of("Size", "two person; four person; six person", DIMENSIONS, 2, 3)
UMBRELLAS = run_of("Size", "7 ft; 9 ft; 11 ft", DIMENSIONS, 2, 3)
NOTEBOOKS = run_of("Size", "pocket; a5; letter", DIMENSIONS, 2, 3)
CASES = run_of("Size", "carry on; medium; large", DIMENSIONS, 2, 3)

TINY_OZ = run_of("Size", "1 oz; 2 oz; 3 oz; 4 oz", DIMENSIONS, 2, 3)
SMALL_OZ = run_of("Size", "2 oz; 4 oz; 8 oz; 16 oz", DIMENSIONS, 2, 3)
BOTTLES = run_of("Size", "12 oz; 18 oz; 24 oz; 32 oz; 40 oz", CAPACITY, 2, 4)
FOOD_OZ = run_of("Size", "7 oz; 10 oz; 14 oz; 32 oz", DIMENSIONS, 2, 3)
KETTLES = run_of("Size", "0.8 liter; 1.7 liter", CAPACITY, 2, 2)
LITERS = run_of("Size", "18 liter; 35 liter; 60 liter", CAPACITY, 2, 3)
GIGABYTES = run_of("Size", "32 gb; 64 gb; 128 gb; 256 gb; 512 gb", CAPACITY, 2, 4)
POWER = run_of("Size", "5000 mah; 12000 mah; 26800 mah", CAPACITY, 2, 3)
CABLES = run_of("Size", "2 ft; 3 ft; 6 ft; 10 ft", LENGTH, 2, 4)
LEADS = run_of("Size", "4 ft; 6 ft; 15 ft", LENGTH, 2, 3)
HOSES = run_of("Size", "25 ft; 50 ft; 75 ft; 100 ft", LENGTH, 2, 4)
STRINGS = run_of("Size", "16 ft; 33 ft; 66 ft", LENGTH, 2, 3)
DUMBBELLS = run_of("Size", "3 lb; 5 lb; 8 lb; 10 lb; 12 lb; 20 lb", WEIGHT, 3, 5)
BANDS = run_of("Style", "light; medium; heavy", TYPE, 2, 3)
TEA_BAGS = run_of("Size", "16 bags; 40 bags; 100 bags", COUNT, 2, 3)
PIECES = run_of("Size", "300 pc; 500 pc; 1000 pc", COUNT, 2, 3)
PACKS = any_of("Item Package Quantity", "1 pack; 2 pack; 3 pack; 4 pack; 6 pack", PACK, 2, 3)
PEN_COUNT = run_of("Item Package Quantity", "8 count; 12 count; 36 count", COUNT, 2, 3)

FRESH = any_of(
    "Scent", "lavender; vanilla; eucalyptus; citrus; rosemary mint; cedarwood; green apple; almond", SCENT, 2, 5
)
WARM = any_of("Scent", "vanilla; cinnamon; cedarwood; fresh linen; pine; sea salt; fig; orange blossom", SCENT, 2, 5)
FLORAL = any_of("Scent", "rose; jasmine; citrus; amber; white musk; peony; cedar", SCENT, 2, 4)
TEAS = any_of("Flavor Name", "jasmine; mint; ginger; lemon; peach; classic; honey", FLAVOR, 2, 4)
ROASTS = any_of("Flavor Name", "light roast; dark roast; french vanilla; hazelnut; caramel; decaf", FLAVOR, 2, 4)
SWEET = any_of("Flavor Name", "sea salt; orange; mint; almond; raspberry; caramel; coconut", FLAVOR, 2, 4)
BREAKFAST = any_of("Flavor Name", "maple; cinnamon; raspberry; vanilla; honey; peanut butter; cocoa", FLAVOR, 2, 4)
SAVORY = any_of("Flavor Name", "sea salt; garlic; smoked paprika; thyme; black pepper; chili lime", FLAVOR, 2, 4)
FRUIT = any_of("Flavor Name", "strawberry; mango; apple; cherry; grape; pineapple", FLAVOR, 2, 4)
HEAT = any_of("Flavor Name", "mild; garlic; smoky; mango; extra hot", FLAVOR, 2, 4)
MEATY = any_of("Flavor Name", "chicken; beef; salmon; turkey; pumpkin; peanut butter", FLAVOR, 2, 4)
SHAPES = any_of("Style", "round; square; oval; hexagon", SHAPE, 2, 3)
BRISTLES = any_of("Style", "soft; medium; firm", TYPE, 2, 3)
PATTERNS = any_of("Pattern Name", "solid; striped; floral; plaid; dotted; geometric", PATTERN, 2, 4)
ANIMALS = any_of("Style", "bear; rabbit; elephant; fox; penguin; dinosaur; owl", TYPE, 2, 4)
SCENES = any_of(
    "Style", "mountain lake; city street; flower market; night sky; old harbor; forest cabin", PICTURE, 2, 4
)
PLUGS = any_of("Style", "usb c; micro usb; usb a", TYPE, 2, 2)
RULINGS = any_of("Style", "lined; dotted; blank; grid", TYPE, 2, 3)
GRINDS = any_of("Style", "whole bean; ground", TYPE, 2, 2)
TEXTURES = any_of("Style", "smooth; crunchy", TYPE, 2, 2)
PASTAS = any_of("Style", "penne; spaghetti; fusilli; macaroni", TYPE, 2, 3)
CRAFTS = any_of("Style", "bracelet making; painting; paper folding; sewing; clay modeling", ACTIVITY, 2, 3)
