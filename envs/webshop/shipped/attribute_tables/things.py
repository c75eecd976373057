"""Attributes of devices, tools, furniture, toys and outdoor goods.

Lines are ``phrase | place in a sentence | kind of heading | statement | further statements``.
"""

from __future__ import annotations

__all__ = ["THINGS"]

THINGS = """
acid free | adj | make | Acid free, so pages do not turn yellow.
adapter included | adj | pack | Adapter included for larger slots.
adjustable height | with | tech | Adjustable height by a lever.
adjustable length | with | tech | Adjustable length for short and tall.
adjustable neck | with | fit | The adjustable neck closes in three steps.
adjustable shelves | with | tech | Adjustable shelves in four positions.
adjustable speed | with | tech | Adjustable speed at the push of a key.
air vents | with | feel | Wide air vents keep you cool.
aluminum body | with | make | A cool aluminum body.
aluminum plug | with | make | The aluminum plug does not bend.
anti fog | adj | tech | An anti fog coat for steamy rooms.
auto focus | with | tech | Auto focus keeps your face sharp.
auto shutoff | with | safe | Auto shutoff when the water boils.
back pocket | with | pack | A back pocket for loose notes.
backlit keys | with | tech | Backlit keys for dark rooms.
bag holder | with | pack | The bag holder is part of the handle.
ball bearings | with | tech | Ball bearings keep it turning.
ball head | with | tech | The ball head moves every way.
bamboo wood | of | make | Bamboo wood with a fine grain.
battery powered | adj | tech | Battery powered, so no cord in the way.
bend resistant | adj | build | Bend resistant at both ends.
blade guard | with | safe | A blade guard for the drawer.
bold point | adj | tech | A bold point for strong lines.
bottle pocket | with | pack | A stretchy bottle pocket.
bpa free | adj | safe | BPA free in all parts. | Everything that touches food is bpa free.
braided nylon | of | make | Tough braided nylon that does not fray.
brass fittings | with | build | Brass fittings at both ends.
built in cable | with | tech | A built in cable you cannot forget.
burst proof | adj | build | Burst proof under full pressure.
cable management | with | tech | Cable management at the back.
cable tie | with | pack | A cable tie keeps it rolled up.
carbon fiber | of | make | Stiff and light carbon fiber.
carbon steel | of | make | Carbon steel that heats fast and wears well.
card holder | with | pack | The card holder takes two cards.
carrying case | with | pack | A carrying case is in the box. | Stows away in its carrying case.
carrying handle | with | pack | A carrying handle that tucks away.
carrying strap | with | pack | The carrying strap goes over your shoulder.
cast iron | of | make | Cast iron, heavy and honest.
charging case | with | tech | The charging case tops them up.
chew resistant | adj | build | Chew resistant, tested by real dogs.
chin support | with | feel | Chin support keeps your head from tipping.
combination lock | with | safe | A combination lock with three dials.
comfort grip | with | feel | A comfort grip for long letters.
compression sack | with | pack | The compression sack halves its size.
cordless base | with | tech | Lifts off a cordless base.
crank handle | with | tech | The crank handle opens it in seconds.
data recovery | with | tech | Data recovery software to download.
data transfer | with | tech | Data transfer as well as power.
deep bass | with | tech | Deep bass for such a size.
dishwasher safe | adj | care | Dishwasher safe on both racks. | Dishwasher safe, so no scrubbing.
door anchor | with | pack | A door anchor for more exercises.
draft collar | with | feel | The draft collar keeps warm air in.
drainage holes | with | build | Drainage holes let water out.
dual microphone | with | tech | A dual microphone for clear calls.
dust free | adj | care | A dust free cut.
dust proof | adj | build | Dust proof on the building site, too.
ear hooks | with | feel | Soft ear hooks hold on.
easy assembly | with | tech | Easy assembly with one tool. | Easy assembly in under half an hour.
easy clean | adj | care | An easy clean surface: one wipe is enough. | Easy clean, with no corners that trap dirt.
easy fill | adj | care | Easy fill from the top.
easy install | adj | tech | Easy install without special tools.
easy learn | adj | tech | Easy learn: start in five minutes.
easy open | adj | tech | An easy open latch.
eco friendly | adj | make | An eco friendly choice.
elastic closure | with | pack | The elastic closure keeps it shut.
embroidered eyes | with | safe | Embroidered eyes that cannot come off.
energy saving | adj | tech | Energy saving, so leave it on all evening.
ergonomic grip | with | feel | An ergonomic grip that rests the wrist.
ergonomic handle | with | feel | The ergonomic handle sits well in the hand.
exercise guide | with | pack | An exercise guide to get you going.
expandable design | with | tech | The expandable design gives two inches more.
family night | for | room | Just right for family night.
fast boiling | adj | tech | Fast boiling: two cups in two minutes.
fast charging | adj | tech | Fast charging: half full in thirty minutes. | Supports fast charging.
fine point | adj | tech | A fine point for neat writing.
flip lid | with | tech | The flip lid opens with a thumb.
floor friendly | adj | care | Floor friendly, even on wood.
foam handles | with | feel | Foam handles that do not slip.
foldable design | with | tech | A foldable design for the bag.
food grade silicone | of | safe | Food grade silicone without smell.
foot rest | with | feel | A foot rest at the right height.
freezer safe | adj | care | Freezer safe, lid and all.
full tang | adj | build | A full tang blade.
glare free | adj | tech | A glare free print.
hand painted | adj | make | Hand painted in bright tones.
hands free | adj | tech | Take calls hands free.
hanging ball | with | pack | A hanging ball to bat at.
hanging hole | with | pack | A hanging hole in one corner.
hanging hook | with | pack | Hangs up by its hanging hook.
hard cover | adj | make | A hard cover that stands up to travel.
hard shell | adj | build | The hard shell shrugs off knocks.
heat resistant | adj | build | Heat resistant to 400 degrees.
heavy duty | adj | build | Heavy duty, made for rough days. | A heavy duty build.
hidden pocket | with | safe | A hidden pocket at the back.
high speed | adj | tech | High speed for large files.
hinged lid | with | tech | The hinged lid closes slowly.
impact resistant | adj | build | An impact resistant shell.
indoor cats | for | room | Keeps indoor cats happy.
induction ready | adj | tech | Induction ready, and fine on gas.
insulated lining | with | build | The insulated lining keeps food cool.
juice groove | with | tech | A juice groove catches the drips.
keyboard tray | with | tech | The keyboard tray slides out.
kick stand | with | tech | A kick stand for watching films.
kink free | adj | build | Kink free, even round corners.
knife friendly | adj | care | A knife friendly surface.
laptop pocket | with | pack | A padded laptop pocket in front.
large dogs | for | room | Made for large dogs.
latex free | adj | safe | Latex free material.
laundry bag | with | pack | A laundry bag is part of the set.
lay flat | adj | tech | Lay flat pages for both hands.
lead free | adj | safe | Lead free throughout.
leak proof | adj | build | Leak proof, even upside down. | A leak proof seal all round.
led display | with | tech | A clear led display.
left handed | adj | fit | Fine for left handed people.
lid included | adj | pack | Lid included.
light show | with | tech | A light show that follows the beat.
light weight | adj | feel | Light weight, so you hardly notice it. | A light weight make that is easy to carry.
long cuff | with | safe | The long cuff covers the wrist.
low latency | adj | tech | Low latency, so lips and words agree.
low light | for | tech | A bright picture in low light.
luggage strap | with | pack | A luggage strap slides over a handle.
lumbar support | with | feel | Lumbar support where you need it.
magnetic base | with | tech | The magnetic base sticks to a car.
magnetic buckle | with | tech | A magnetic buckle you can close with gloves.
magnetic closure | with | tech | The magnetic closure shuts by itself.
magnetic pieces | with | tech | Magnetic pieces stay on the board.
media keys | with | tech | Media keys for sound and songs.
medium point | adj | tech | A medium point for every day.
mesh back | with | feel | The mesh back lets air through.
mesh panel | with | feel | A mesh panel shows what is inside.
mesh pockets | with | pack | Mesh pockets for small things.
mesh vents | with | feel | Mesh vents on all sides.
metal frame | with | build | A welded metal frame. | The metal frame does not sway.
metal legs | with | build | Slim metal legs that stand firm.
metal mesh | of | make | Strong metal mesh.
microwave safe | adj | care | Microwave safe without the lid.
multi device | adj | tech | Multi device: switch with one key.
name tag | with | pack | A name tag inside.
neoprene coating | with | feel | A neoprene coating that is warm to the touch.
night mode | with | tech | A night mode for late films.
noise cancelling | adj | tech | Noise cancelling that hushes engines.
non slip | adj | safe | A non slip underside. | Non slip, even when wet.
non stick | adj | care | A non stick coat: eggs slide right off.
non toxic | adj | safe | Non toxic paint and glue.
numbered pages | with | tech | Numbered pages make things easy to find.
odor resistant | adj | care | Odor resistant for a fresh home.
older dogs | for | room | A relief for older dogs.
optical input | with | tech | An optical input for the screen.
orthopedic foam | with | feel | Orthopedic foam evens out the weight.
outdoor use | for | room | Fit for outdoor use.
oven safe | adj | care | Oven safe to 450 degrees.
padded armrests | with | feel | Padded armrests on both sides.
padded handle | with | feel | A padded handle for strong pullers.
padded seat | with | feel | A thick padded seat.
padded straps | with | feel | Padded straps that do not cut in.
pfoa free | adj | safe | PFOA free coating.
phone holder | with | pack | A phone holder comes along.
phone stand | with | pack | A phone stand on one side.
picture guide | with | pack | A picture guide shows each step.
poster included | adj | pack | Poster included to work from.
privacy cover | with | safe | A privacy cover slides shut.
puncture resistant | adj | build | Puncture resistant finger tips.
pure aluminum | of | make | Pure aluminum that does not rust.
push button | with | tech | Tilts by push button.
quick play | adj | tech | A quick play round takes fifteen minutes.
quick release | with | tech | A quick release plate.
quick setup | with | tech | Quick setup in three minutes.
rain fly | with | pack | The rain fly covers every seam.
raised edges | with | safe | Raised edges guard the screen.
razor sharp | adj | build | Razor sharp out of the box.
rear light | with | safe | A rear light with three modes.
rechargeable battery | with | tech | A rechargeable battery that lasts for days. | Runs on a rechargeable battery.
refillable ink | with | pack | Refillable ink, so you throw less away.
remote control | with | tech | The remote control is in the box.
removable divider | with | tech | A removable divider for bigger meals.
removable visor | with | tech | The removable visor clips off.
ribbon bookmark | with | pack | A ribbon bookmark keeps your place.
ring light | with | tech | A ring light with soft glow.
rounded edges | with | safe | Rounded edges on every part.
rubber coating | with | feel | A rubber coating that spares the floor.
rust proof | adj | build | Rust proof in damp air. | Stays rust proof for years.
saucer included | adj | pack | Saucer included to catch water.
scratch resistant | adj | build | A scratch resistant surface. | Scratch resistant, so it stays like new.
screen free | adj | safe | Hours of screen free fun.
self watering | adj | tech | Self watering for a week away.
shatter proof | adj | safe | Shatter proof, for safety.
shock proof | adj | build | Shock proof if dropped.
shoe compartment | with | pack | A shoe compartment at one end.
shoulder strap | with | pack | A wide shoulder strap.
side buttons | with | tech | Side buttons for back and forward.
silent click | with | tech | A silent click nobody else hears.
silent keys | with | tech | Silent keys for shared rooms.
silent wheels | with | tech | Silent wheels for all floors.
small dogs | for | room | Sized for small dogs.
smear proof | adj | tech | Smear proof as soon as it is down.
snap lid | with | tech | The snap lid locks on four sides.
snap resistant | adj | build | Snap resistant layers.
soft close | with | tech | A soft close drawer.
soft cover | adj | make | A soft cover that bends.
soft shell | adj | build | A soft shell with outside pockets.
solar powered | adj | tech | Solar powered by day, ready by night.
space saving | adj | room | A space saving shape. | Space saving, so the room stays open.
spill resistant | adj | build | Spill resistant if a cup tips over.
spinner wheels | with | tech | Four spinner wheels turn every way.
spiral bound | adj | make | Spiral bound to fold back.
spray nozzle | with | pack | A spray nozzle with eight patterns.
squirrel proof | adj | build | Squirrel proof, most of the time.
stackable design | with | tech | The stackable design saves a shelf.
stainless steel | of | make | Brushed stainless steel that does not stain. | Stainless steel inside and out.
stay cool | adj | safe | A stay cool handle.
steel cable | with | build | A coated steel cable.
stereo sound | with | tech | Full stereo sound.
sticker sheets | with | pack | Two sticker sheets to brighten the week.
stitched edges | with | build | Stitched edges do not peel.
storage bag | with | pack | A storage bag with a cord.
storage box | with | pack | A storage box with a lid.
storage rack | with | pack | A storage rack keeps them in order.
storage shelf | with | tech | An open storage shelf below.
straw lid | with | tech | A straw lid for sips on the move.
suction cups | with | tech | Strong suction cups.
surround sound | with | tech | Surround sound from one box.
sweat free | adj | feel | Sweat free outside, even with ice.
sweat resistant | adj | build | Sweat resistant top.
swivel seat | with | tech | The swivel seat turns all the way round.
tangle free | adj | build | Tangle free, whatever your bag does.
telescopic handle | with | tech | The telescopic handle locks in two heights.
temperature control | with | tech | Temperature control in five steps.
tempered glass | of | make | Tempered glass with smooth edges.
thick board | of | make | Cut from thick board.
thick paper | of | make | Thick paper that takes any pen.
thorn proof | adj | safe | Thorn proof from palm to tip.
timer function | with | tech | A timer function for the evening.
touch control | with | tech | Touch control: one tap does it.
touch screen | for | tech | Tips that work on a touch screen.
tripod mount | with | tech | A tripod mount underneath.
two drawers | with | tech | Two drawers that run smoothly.
two players | for | room | Works for two players as well.
two ports | with | tech | Two ports, so nobody waits.
usb port | with | tech | A usb port to charge your phone. | The usb port is easy to reach.
usb powered | adj | tech | USB powered from any charger.
uv resistant | adj | build | UV resistant in full sun.
video recording | for | tech | Quick enough for video recording.
wall anchor | with | safe | A wall anchor keeps it from tipping.
wall mounted | adj | room | Wall mounted with two screws.
warp resistant | adj | build | Warp resistant at high heat.
washable colors | with | care | Washable colors that come out of clothes.
washable pads | with | care | Washable pads inside.
water proof | adj | build | Water proof, even under the tap.
water resistant | adj | build | Water resistant, so light rain is no problem. | A water resistant layer keeps damp out.
water window | with | tech | The water window shows the level.
weather resistant | adj | build | Weather resistant in sun and snow.
weighted body | with | feel | The weighted body is calming to hold.
wet pocket | with | pack | A wet pocket for swimwear.
wide angle | adj | tech | A wide angle view of the room.
wind vent | with | build | A wind vent lets gusts through.
wireless bluetooth | with | tech | Wireless bluetooth that pairs in seconds.
wireless charging | with | tech | Ready for wireless charging.
wireless connection | with | tech | A wireless connection, no cord on the desk.
wooden handle | with | make | A wooden handle, oiled by hand.
wrist rest | with | feel | A soft wrist rest.
double wall | adj | build | A double wall keeps heat in.
"""
