"""Attributes of clothes, shoes, fabrics and decoration.

Lines are ``phrase | place in a sentence | kind of heading | statement | further statements``.
"""

from __future__ import annotations

__all__ = ["CLOTH_AND_HOME"]

CLOTH_AND_HOME = """
button closure | with | fit | A neat button closure. | The button closure sits flat.
crew neck | adj | fit | The crew neck keeps its shape.
cooling fabric | of | feel | A cooling fabric for warm nights.
cotton blend | of | make | A cotton blend that feels soft and wears well.
drawstring closure | with | fit | The drawstring closure adjusts in a second.
elastic waist | with | fit | An elastic waist that does not pinch. | Comfortable elastic waist.
everyday wear | for | fit | Good for everyday wear.
extra soft | adj | feel | Extra soft from the first touch.
extra thick | adj | feel | Extra thick, and you feel the difference.
extra warm | adj | feel | Extra warm for cold nights.
fade resistant | adj | care | Fade resistant colors. | Fade resistant, wash after wash and summer after summer.
faux fur | of | make | Fluffy faux fur that does not shed.
faux leather | of | make | Smooth faux leather that wipes clean. | Faux leather with a fine grain.
fleece lining | with | feel | Warm fleece lining inside.
genuine leather | of | make | Genuine leather that ages well. | Cut from genuine leather.
hand wash | adj | care | Please hand wash in cold water.
high waist | adj | fit | The high waist stays put.
hypoallergenic fabric | of | safe | Hypoallergenic fabric inside and out.
linen blend | of | make | An airy linen blend.
long sleeve | adj | fit | A long sleeve cut with room at the cuff.
short sleeve | adj | fit | A short sleeve cut for warm days.
machine washable | adj | care | Machine washable in cold water. | Machine washable, so spills are no drama.
memory foam | with | feel | Memory foam that follows your shape. | A layer of memory foam takes the pressure off.
merino wool | of | make | Fine merino wool that does not scratch.
moisture wicking | adj | feel | Moisture wicking, so you stay dry.
natural cork | of | make | Natural cork, warm and firm.
natural jute | of | make | Woven from natural jute.
natural rubber | of | make | Natural rubber with good grip.
natural sisal | of | make | Tightly wound natural sisal.
office wear | for | fit | Smart enough for office wear.
pure cotton | of | make | Soft pure cotton that breathes. | Pure cotton, nothing added.
quick drying | adj | care | Quick drying: ready again in no time. | A quick drying finish saves time.
recycled polyester | of | make | Recycled polyester made from old bottles.
regular fit | adj | fit | A regular fit, neither tight nor wide.
relaxed fit | adj | fit | A relaxed fit with room to move.
removable hood | with | fit | The removable hood comes off with a zipper.
side pockets | with | fit | Deep side pockets for keys and phone. | Two side pockets at the seams.
side pocket | with | fit | A side pocket for the charger.
slim fit | adj | fit | A slim fit that follows the body.
snug fit | adj | fit | A snug fit throughout.
soft flannel | of | make | Brushed soft flannel.
soft suede | of | make | Soft suede with a fine nap.
soft velvet | of | make | Soft velvet that catches the light.
soft plush | of | make | Covered in soft plush.
soft silicone | of | make | Soft silicone that is easy to grip.
squat proof | adj | fit | Squat proof fabric that is not see-through.
straight leg | adj | fit | A straight leg from knee to hem.
stretch fabric | of | feel | Stretch fabric that moves with you.
tag free | adj | feel | Tag free at the neck and waist.
tumble dry | adj | care | You may tumble dry it on low.
v neck | adj | fit | The v neck is not too deep.
wind proof | adj | build | Wind proof even on the coast.
wrinkle free | adj | care | Wrinkle free straight from the dryer. | Stays wrinkle free in a suitcase.
zipper closure | with | fit | A smooth zipper closure. | The zipper closure runs without snagging.
ankle support | with | feel | Firm ankle support on rough ground.
adjustable strap | with | fit | The adjustable strap stays where you set it.
arch support | with | feel | Built-in arch support for long days. | Good arch support under the foot.
hand stitched | adj | make | Hand stitched along the edge.
indoor outdoor | adj | room | For indoor outdoor use.
knit upper | with | feel | A knit upper that fits like a sock.
lace up | adj | fit | Lace up for a firm hold.
mesh upper | with | feel | The mesh upper lets air in.
open toe | adj | fit | An open toe shape for hot days.
pull tabs | with | fit | Pull tabs make them easy to put on.
reflective trim | with | safe | Reflective trim for dark mornings. | Be seen at night with reflective trim.
rubber sole | with | build | A rubber sole with deep grooves. | The rubber sole grips wet stone.
shock absorbing | adj | build | Shock absorbing where it matters.
slip on | adj | fit | Slip on and go.
slip resistant | adj | safe | Slip resistant on wet floors. | A slip resistant tread.
steel toe | adj | safe | The steel toe guards your feet at work.
vegan friendly | adj | make | Vegan friendly, glue included.
wide calf | adj | fit | A wide calf cut with room to spare.
wide toe | adj | fit | A wide toe shape lets feet spread.
bamboo fiber | of | make | Silky bamboo fiber. | Woven from bamboo fiber.
back sleepers | for | room | The right height for back sleepers.
side sleepers | for | room | Firm enough for side sleepers.
deep pockets | with | fit | Deep pockets hold on to tall mattresses.
adjustable fill | with | feel | Adjustable fill: take some out for a flatter shape.
double sided | adj | tech | Double sided: turn it over for a new look.
down alternative | of | make | Filled with down alternative.
hanging loop | with | pack | A hanging loop on the short side.
highly absorbent | adj | feel | Highly absorbent from the first use.
hooks included | adj | pack | Hooks included, all twelve.
insert included | adj | pack | Insert included and ready to use.
light filtering | adj | room | A light filtering weave for a soft glow.
room darkening | adj | room | Room darkening for late sleepers.
thermal lining | with | feel | The thermal lining keeps heat in.
noise reducing | adj | feel | A noise reducing weave for busy streets.
lint free | adj | care | Lint free on glass.
mildew resistant | adj | care | Mildew resistant in damp rooms.
pvc free | adj | safe | PVC free, with no smell.
pet friendly | adj | safe | Pet friendly: hair comes off easily.
stain resistant | adj | care | Stain resistant, so coffee wipes off.
washable cover | with | care | A washable cover you can take off.
weighted hem | with | build | The weighted hem hangs still.
high pile | adj | feel | A high pile to sink into.
low pile | adj | feel | A low pile that is easy to vacuum.
brushed metal | of | make | Brushed metal with a soft sheen.
bulb included | adj | pack | Bulb included, so you can switch it on today.
ceramic base | with | make | A heavy ceramic base.
ceramic body | with | make | A thick ceramic body.
dimmable light | with | tech | Dimmable light from bright to cozy.
dining room | for | room | At home in the dining room.
easy read | adj | room | An easy read face from across the hall.
engineered wood | of | make | Engineered wood that does not warp.
glass cover | with | build | A glass cover keeps dust out.
glass shade | with | make | The glass shade spreads the light.
glazed finish | with | make | A glazed finish that catches the light.
guest room | for | room | A nice touch for the guest room.
hand made | adj | make | Hand made, one at a time.
hanging hardware | with | pack | Hanging hardware in a small bag.
home office | for | room | Made for the home office. | Looks right in a home office.
kids room | for | room | Cheerful in a kids room.
kitchen island | for | room | The right height for a kitchen island.
large numbers | with | room | Large numbers you can see from afar.
large handle | with | feel | A large handle for three fingers.
linen shade | with | make | The linen shade gives a warm light.
living room | for | room | Looks right in the living room. | Brings warmth to a living room.
mat included | adj | pack | Mat included for smaller pictures.
matte finish | with | make | A matte finish that hides marks.
narrow neck | with | make | A narrow neck for single stems.
wide opening | with | make | A wide opening for full bunches.
silent movement | with | tech | Silent movement: not a tick at night.
small spaces | for | room | Sized for small spaces.
solid wood | of | make | Solid wood with a visible grain. | Built from solid wood.
table stand | with | pack | A table stand folds out at the back.
water tight | adj | build | Water tight and tested.
recycled glass | of | make | Blown from recycled glass.
recycled paper | of | make | Made with recycled paper.
recycled plastic | of | make | Recycled plastic that feels solid.
"""
