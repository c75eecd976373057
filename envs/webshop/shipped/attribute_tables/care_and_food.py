"""Attributes of what is eaten, drunk or put on the skin, and how it is packed.

Lines are ``phrase | place in a sentence | kind of heading | statement | further statements``.
"""

from __future__ import annotations

__all__ = ["CARE_AND_FOOD"]

CARE_AND_FOOD = """
alcohol free | adj | skin | An alcohol free formula that does not dry you out.
aloe vera | with | skin | With cooling aloe vera. | A good share of aloe vera keeps it light.
argan oil | with | skin | Enriched with argan oil for a soft shine.
biodegradable formula | with | skin | The biodegradable formula breaks down in water.
coconut oil | with | skin | Coconut oil makes it smooth and creamy.
colored hair | for | skin | Mild enough for colored hair.
cruelty free | adj | skin | Cruelty free from start to finish. | We stay cruelty free, and so do our suppliers.
curly hair | for | skin | Leaves curly hair springy.
dry hair | for | skin | Brings dry hair back to softness.
dry skin | for | skin | Comforts dry skin at once. | Made with dry skin in mind.
essential oils | with | skin | Scented with essential oils.
fast absorbing | adj | skin | Fast absorbing, so you can get dressed right away.
fine hair | for | skin | Light enough for fine hair.
fragrance free | adj | skin | Fragrance free for noses that like it plain.
green tea | with | skin | With a fresh extract of green tea.
hyaluronic acid | with | skin | Hyaluronic acid helps it hold moisture.
natural beeswax | with | skin | Natural beeswax gives it its soft gloss.
oily skin | for | skin | Leaves no shine on oily skin.
olive oil | with | skin | Made with olive oil from the first pressing.
paraben free | adj | skin | The recipe is paraben free. | Paraben free and simple to understand.
plant based | adj | safe | A plant based recipe. | Everything in it is plant based.
sensitive skin | for | skin | Kind to sensitive skin. | Mild enough for sensitive skin.
shea butter | with | skin | Shea butter makes it rich without being heavy.
silicone free | adj | skin | Silicone free, so nothing builds up.
sulfate free | adj | skin | A sulfate free wash that still lathers. | Sulfate free and easy to rinse.
tea tree | with | skin | A touch of tea tree smells fresh and clean.
thick hair | for | skin | Gets through thick hair without pulling.
vegan formula | with | skin | A vegan formula through and through.
vitamin e | with | skin | With vitamin e added.
anti static | adj | tech | Anti static, so hair does not fly about.
chip resistant | adj | build | Chip resistant even after a week of use.
cool shot | with | tech | A cool shot button sets the style.
diffuser included | adj | pack | Diffuser included for waves and curls.
dual voltage | adj | tech | Dual voltage, for trips abroad.
fast drying | adj | tech | Fast drying thanks to a strong stream of air.
foldable handle | with | tech | The foldable handle saves room in a bag.
high shine | adj | feel | A high shine finish.
ionic technology | with | tech | Ionic technology leaves hair smooth.
low noise | adj | tech | Low noise, so the house sleeps on.
bamboo handles | with | make | Light bamboo handles that stay dry.
metal handles | with | make | Metal handles with a good weight.
wooden handles | with | make | Wooden handles with a smooth finish.
brush stand | with | pack | The brush stand keeps everything in reach.
storage pouch | with | pack | A storage pouch comes with it.
synthetic bristles | with | make | Synthetic bristles that do not shed.
precision brush | with | tech | The precision brush follows the edge.
wide brush | with | tech | A wide brush covers a nail in two strokes.
recycled bottle | in | pack | Filled in a recycled bottle.
spray bottle | in | pack | The spray bottle gives a fine mist.
roll on | adj | pack | The roll on head wastes nothing.
soft touch | adj | feel | A soft touch surface that is nice to hold.
travel size | in | pack | The travel size slips into any bag. | A travel size that goes in hand luggage.
long lasting | adj | build | Long lasting, from morning to evening. | A long lasting companion.
gift box | in | pack | Arrives in a gift box. | The gift box needs no more wrapping.
caffeine free | adj | food | Caffeine free, so late cups are fine.
certified organic | adj | food | Certified organic by an outside body. | Grown and packed certified organic.
cold pressed | adj | food | Cold pressed in small lots.
compostable bags | in | pack | Packed in compostable bags.
dairy free | adj | food | Dairy free, with nothing missing. | The recipe is dairy free.
egg free | adj | food | Egg free dough.
fair trade | adj | food | Fair trade, with a fair price for growers.
gelatin free | adj | food | Gelatin free and still chewy.
glass bottle | in | pack | Comes in a glass bottle.
glass jar | in | pack | Comes in a glass jar you will keep.
gluten free | adj | food | Gluten free and checked in each lot. | A gluten free recipe for the whole table.
high fiber | adj | food | A high fiber choice.
high protein | adj | food | High protein to keep you going.
individually wrapped | adj | pack | Individually wrapped for the lunch bag.
kosher certified | adj | food | Kosher certified; see the mark on the label.
low acid | adj | food | A low acid roast with a round taste.
low fat | adj | food | Low fat, so a second one is fine.
low sodium | adj | food | Low sodium, but full of taste.
low sugar | adj | food | Low sugar: sweet enough and no more.
non gmo | adj | food | Made with non gmo ingredients. | Non gmo, from field to shelf.
nut free | adj | food | Made in a nut free kitchen.
palm oil free | adj | food | Palm oil free, as the label says.
pour spout | with | pack | The pour spout does not drip.
raw unfiltered | adj | food | Raw unfiltered, just as it comes from the hive.
real fruit | with | food | Made with real fruit.
recycled cans | in | pack | Sold in recycled cans.
resealable bag | in | pack | The resealable bag keeps it fresh.
shade grown | adj | food | Shade grown under tall trees.
single ingredient | adj | food | A single ingredient snack.
single origin | adj | food | Single origin, from one valley.
slow baked | adj | food | Slow baked until crisp.
slow dried | adj | food | Slow dried for two days.
small batch | adj | food | A small batch product.
soy free | adj | food | Soy free, too.
squeeze bottle | in | pack | The squeeze bottle leaves no sticky spoons.
stone ground | adj | food | Stone ground for a fine texture.
sugar free | adj | food | Sugar free, yet never bland. | We keep it sugar free.
whole grain | adj | food | Whole grain goodness in each bite.
grain free | adj | food | A grain free recipe.
organic catnip | with | pack | Filled with organic catnip.
clean burning | adj | safe | Clean burning, with next to no smoke.
cotton wick | with | make | A cotton wick that stands straight.
wooden wick | with | make | The wooden wick crackles softly.
hand poured | adj | make | Hand poured in our workshop.
soy wax | of | make | Poured from soy wax.
"""
