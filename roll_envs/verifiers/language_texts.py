"""What the languages that share a script look like: their commonest words, and a few sentences written for this table.

Languages with a script of their own need no entry; :mod:`roll_envs.verifiers.language` knows them by their letters.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TEXTS", "Sample"]


class Sample(NamedTuple):
    """A language by example."""

    words: str
    """Its commonest words."""
    text: str
    """Sentences of every day."""


TEXTS: dict[str, Sample] = {
    "en": Sample(
        "the of and to in is that it was for on are as with his they at be this have from or had by but what some "
        "we can out other were all there when up use your how said an each she which do their if will way about "
        "many then them would like so these her make has him two more go no my than been who its now did get may "
        "not you i he",
        "Every morning the children walk to school together, and their mother watches them from the window. I would "
        "like to know what you think about this question before we decide anything. There are several reasons why "
        "people should eat more vegetables, although most of them prefer something sweet. The weather was cold "
        "yesterday, but today the sun is shining and everyone is working outside. Through this program we could "
        "help the world understand how the right light changes a room. Please write down your name and choose the "
        "best one.",
    ),
    "de": Sample(
        "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er "
        "hat dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor "
        "zur bis mehr durch man sein wurde sei wenn ich du wir ihr mich mir kann schon sehr unter dieser diese "
        "keine hier",
        "Jeden Morgen gehen die Kinder zusammen in die Schule, und ihre Mutter schaut ihnen vom Fenster aus zu. Ich "
        "möchte wissen, was Sie über diese Frage denken, bevor wir etwas entscheiden. Es gibt mehrere Gründe, warum "
        "man mehr Gemüse essen sollte, obwohl die meisten lieber etwas Süßes mögen. Gestern war das Wetter "
        "schlecht, aber heute scheint die Sonne und alle arbeiten draußen. Bitte schreiben Sie Ihren Namen auf und "
        "wählen Sie das Beste. Das Glück der Menschen hängt nicht nur vom Geld ab, sondern auch von der Gesundheit.",
    ),
    "fr": Sample(
        "le la les de des du et à un une en est que qui dans pour pas sur ce il elle ne se plus par avec je au aux "
        "son sa ses on nous vous ils mais ou comme tout fait être été leur cette ces si sont avoir même aussi où "
        "bien sans peut très faire deux entre lui quand notre nos votre vos c'est d'un d'une n'est qu'il j'ai l'on "
        "y a",
        "Chaque matin, les enfants vont à l'école ensemble et leur mère les regarde par la fenêtre. Je voudrais "
        "savoir ce que vous pensez de cette question avant que nous prenions une décision. Il y a plusieurs raisons "
        "pour lesquelles on devrait manger plus de légumes, même si la plupart préfèrent quelque chose de sucré. "
        "Hier il faisait froid, mais aujourd'hui le soleil brille et tout le monde travaille dehors. Veuillez "
        "écrire votre nom et choisir la meilleure réponse. Le bonheur ne dépend pas seulement de l'argent, mais "
        "aussi de la santé.",
    ),
    "es": Sample(
        "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me si sin "
        "sobre este ya entre cuando todo esta ser son dos también fue había era muy años hasta desde está mi porque "
        "qué sólo han yo hay vez puede todos así nos ni parte tiene él uno donde bien tiempo mismo ese ahora cada "
        "ella",
        "Todas las mañanas los niños van juntos a la escuela y su madre los mira desde la ventana. Me gustaría "
        "saber qué piensa usted de esta cuestión antes de que decidamos algo. Hay varias razones por las que "
        "deberíamos comer más verduras, aunque la mayoría prefiere algo dulce. Ayer hacía frío, pero hoy brilla el "
        "sol y todo el mundo trabaja fuera. Por favor, escriba su nombre y elija la mejor respuesta. La felicidad "
        "no depende solamente del dinero, sino también de la salud y de los amigos que tenemos cerca.",
    ),
    "pt": Sample(
        "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à seu "
        "sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo aos "
        "ter seus quem nas me esse eles estão você tinha foram essa num nem suas meu às minha têm numa pelos são",
        "Todas as manhãs as crianças vão juntas para a escola e a mãe delas olha pela janela. Eu gostaria de saber "
        "o que você pensa sobre esta questão antes de decidirmos alguma coisa. Há várias razões pelas quais "
        "deveríamos comer mais legumes, embora a maioria prefira alguma coisa doce. Ontem estava frio, mas hoje o "
        "sol brilha e todos trabalham lá fora. Por favor, escreva o seu nome e escolha a melhor opção. A felicidade "
        "não depende apenas do dinheiro, mas também da saúde e dos amigos que temos por perto.",
    ),
    "it": Sample(
        "di e il la che in a per un è non una sono mi ho con ma si le lo ha i se da più al come del della dei nel "
        "alla questo anche gli o ci su tutto perché delle cosa molto quando era quello io suo sua loro essere fatto "
        "hanno dopo stato tra così c'è l'altro ogni due prima già senza sempre lui lei noi voi può degli dal dalla "
        "alle nella",
        "Ogni mattina i bambini vanno insieme a scuola e la loro madre li guarda dalla finestra. Vorrei sapere che "
        "cosa pensa di questa domanda prima che decidiamo qualcosa. Ci sono diversi motivi per cui dovremmo "
        "mangiare più verdura, anche se la maggior parte delle persone preferisce qualcosa di dolce. Ieri faceva "
        "freddo, ma oggi splende il sole e tutti lavorano fuori. Per favore, scriva il suo nome e scelga la "
        "risposta migliore. La felicità non dipende soltanto dal denaro, ma anche dalla salute e dagli amici che "
        "abbiamo vicino.",
    ),
    "nl": Sample(
        "de het een van en in is dat op te zijn met voor niet aan er die om ook als dan maar bij uit nog naar door "
        "over ze hij ik je we wat was werd hebben heeft had kan wordt worden dit deze geen wel meer al zo tot hun "
        "haar mijn onder veel tegen na waar moet zou wil zij jij u ons onze iets mensen jaar goed alleen omdat toen "
        "hier",
        "Elke ochtend lopen de kinderen samen naar school en hun moeder kijkt naar hen uit het raam. Ik zou graag "
        "willen weten wat u van deze vraag vindt voordat we iets beslissen. Er zijn verschillende redenen waarom we "
        "meer groente zouden moeten eten, hoewel de meesten liever iets zoets hebben. Gisteren was het koud, maar "
        "vandaag schijnt de zon en werkt iedereen buiten. Schrijf alstublieft uw naam op en kies het beste "
        "antwoord. Geluk hangt niet alleen af van geld, maar ook van gezondheid en van de vrienden die dichtbij "
        "zijn.",
    ),
    "sv": Sample(
        "och i att det som en på är av för med till den har de inte om ett han men var jag sig från vi så kan när "
        "man år eller nu hade där under efter blev mycket ska skulle kommer ut mot sin alla hon bara mer också få "
        "än vad över hur här någon denna detta dem mig du bli ha vara andra några finns utan inom får sedan oss",
        "Varje morgon går barnen tillsammans till skolan och deras mamma tittar på dem från fönstret. Jag skulle "
        "vilja veta vad du tycker om den här frågan innan vi bestämmer något. Det finns flera skäl till att vi "
        "borde äta mer grönsaker, även om de flesta hellre vill ha något sött. I går var det kallt, men i dag "
        "skiner solen och alla arbetar utomhus. Skriv ditt namn och välj det bästa svaret. Lyckan beror inte bara "
        "på pengar utan också på hälsan och på vännerna som finns i närheten.",
    ),
    "fi": Sample(
        "ja on ei se että oli hän mutta ovat kun niin myös kuin joka tai hänen sen ole sekä mitä jos ne nyt olla "
        "vain minä sinä me te he tämä siitä joten vielä kaikki sitten voi jo mukaan jossa noin koska ollut olen "
        "olisi hyvin enemmän paljon tässä siellä häntä mikä kuka missä miten eikä jotka tämän niitä ihmiset vuoden "
        "jälkeen",
        "Joka aamu lapset kävelevät yhdessä kouluun, ja heidän äitinsä katsoo heitä ikkunasta. Haluaisin tietää, "
        "mitä ajattelet tästä kysymyksestä, ennen kuin päätämme mitään. On monta syytä, miksi meidän pitäisi syödä "
        "enemmän vihanneksia, vaikka useimmat haluavat mieluummin jotakin makeaa. Eilen oli kylmä, mutta tänään "
        "aurinko paistaa ja kaikki työskentelevät ulkona. Kirjoita nimesi ja valitse paras vastaus. Onni ei riipu "
        "vain rahasta vaan myös terveydestä ja ystävistä, joita meillä on lähellä.",
    ),
    "pl": Sample(
        "i w na z się nie do to jest że o jak za po od ale dla co tak przez był tym przy już może tego jego była "
        "ich są jej czy tylko oraz być ma by też które który która jeszcze bardzo te ten mnie gdy kiedy gdzie ze ja "
        "ty my wy on ona oni nas go mu swoje wszystko bez pod nad więc lub lat roku można będzie było ponieważ "
        "każdy tej",
        "Każdego ranka dzieci idą razem do szkoły, a ich matka patrzy na nie z okna. Chciałbym wiedzieć, co pan "
        "myśli o tym pytaniu, zanim cokolwiek postanowimy. Jest kilka powodów, dla których powinniśmy jeść więcej "
        "warzyw, chociaż większość woli coś słodkiego. Wczoraj było zimno, ale dzisiaj świeci słońce i wszyscy "
        "pracują na zewnątrz. Proszę napisać swoje imię i wybrać najlepszą odpowiedź. Szczęście zależy nie tylko od "
        "pieniędzy, lecz także od zdrowia i przyjaciół, których mamy blisko siebie.",
    ),
    "cs": Sample(
        "a se na je v že to s z do o i ve jako po pro by ale za si od které který která jsou jeho však tak nebo být "
        "jen jsem byl byla bylo už také aby před jeho její co jak když má ze než kde ještě více podle při až můžete "
        "musí není této tento tato jejich všechno každý dnes velmi proto nás vás mě já ty my vy oni protože pod "
        "mezi",
        "Každé ráno jdou děti společně do školy a jejich matka se na ně dívá z okna. Chtěl bych vědět, co si "
        "myslíte o této otázce, než něco rozhodneme. Existuje několik důvodů, proč bychom měli jíst více zeleniny, "
        "i když většina lidí má raději něco sladkého. Včera bylo chladno, ale dnes svítí slunce a všichni pracují "
        "venku. Napište prosím své jméno a vyberte nejlepší odpověď. Štěstí nezávisí jen na penězích, ale také na "
        "zdraví a na přátelích, které máme blízko.",
    ),
    "ro": Sample(
        "de și în a la cu pe că nu o un este să din pentru se mai care au prin ca sau fi ce dar le i-a fost lui ei "
        "sunt acest această după el ea noi voi cum dacă când foarte tot toate către fără între până poate trebuie "
        "avea are era doar astfel cel cea cei cele unei unui unor am ai ați lor său sa sale nici unde decât oameni "
        "timp ani",
        "În fiecare dimineață copiii merg împreună la școală, iar mama lor îi privește de la fereastră. Aș vrea să "
        "știu ce credeți despre această întrebare înainte să hotărâm ceva. Există mai multe motive pentru care ar "
        "trebui să mâncăm mai multe legume, deși majoritatea preferă ceva dulce. Ieri a fost frig, dar astăzi "
        "soarele strălucește și toată lumea lucrează afară. Vă rog să scrieți numele și să alegeți cel mai bun "
        "răspuns. Fericirea nu depinde numai de bani, ci și de sănătate și de prietenii pe care îi avem aproape.",
    ),
    "hu": Sample(
        "a az és hogy nem is egy ez meg de csak már volt van el mint ha azt még ki mert kell lesz be ő én te mi ti "
        "ők minden vagy pedig akkor nagyon sem így itt ott most aki ami amely után között lehet majd való volna ezt "
        "neki nekem miért hogyan mikor hol fel le vissza több mindig soha ember alatt szerint által során illetve "
        "olyan",
        "A gyerekek minden reggel együtt mennek az iskolába, és az anyjuk az ablakból nézi őket. Szeretném tudni, "
        "mit gondol erről a kérdésről, mielőtt bármit eldöntünk. Több oka is van annak, hogy miért kellene több "
        "zöldséget ennünk, bár a legtöbben inkább valami édeset szeretnek. Tegnap hideg volt, de ma süt a nap, és "
        "mindenki kint dolgozik. Kérem, írja le a nevét, és válassza ki a legjobb választ. A boldogság nemcsak a "
        "pénztől függ, hanem az egészségtől és a közelünkben lévő barátoktól is.",
    ),
    "tr": Sample(
        "ve bir bu da de için ile çok olarak daha olan gibi en kadar ama ne var o sonra ben sen biz siz onlar değil "
        "mi mı ise ya her şey veya ki diye nasıl neden zaman yok olduğu oldu önce iyi kendi bütün hiç şu bana sana "
        "ona onun benim senin bizim göre olur vardır etmek eden tarafından üzerinde içinde arasında ancak çünkü hem",
        "Her sabah çocuklar birlikte okula gidiyor ve anneleri onları pencereden izliyor. Bir karar vermeden önce "
        "bu soru hakkında ne düşündüğünüzü bilmek istiyorum. Çoğu kişi tatlı bir şeyi tercih etse de daha fazla "
        "sebze yememiz için birkaç neden vardır. Dün hava soğuktu ama bugün güneş parlıyor ve herkes dışarıda "
        "çalışıyor. Lütfen adınızı yazın ve en iyi cevabı seçin. Mutluluk yalnızca paraya değil, aynı zamanda "
        "sağlığa ve yakınımızdaki arkadaşlara da bağlıdır.",
    ),
    "id": Sample(
        "yang dan di dengan untuk dari ini itu pada adalah dalam tidak ke akan juga atau ada oleh saya kamu kami "
        "kita mereka dia anda karena sebagai bisa telah lebih dapat sudah satu orang tahun bahwa tersebut seperti "
        "hanya tetapi saat menjadi banyak sangat harus antara setelah kepada belum masih lagi jika hari apa "
        "sehingga semua",
        "Setiap pagi anak-anak berjalan bersama ke sekolah dan ibu mereka melihat dari jendela. Saya ingin tahu apa "
        "pendapat Anda tentang pertanyaan ini sebelum kita memutuskan sesuatu. Ada beberapa alasan mengapa kita "
        "sebaiknya makan lebih banyak sayuran, meskipun kebanyakan orang lebih suka sesuatu yang manis. Kemarin "
        "cuacanya dingin, tetapi hari ini matahari bersinar dan semua orang bekerja di luar. Tolong tulis nama Anda "
        "dan pilih jawaban yang terbaik. Kebahagiaan tidak hanya bergantung pada uang, tetapi juga pada kesehatan.",
    ),
    "vi": Sample(
        "của và là có được cho trong các một không với này những người đã để khi đến từ về ra như cũng ở tôi bạn "
        "chúng ta họ nó anh chị em sẽ đang rất nhiều vì nếu thì mà lại hơn năm ngày sau trước còn phải theo trên "
        "hay hoặc làm nhưng đó bị vào tại nên việc cách thể gì nào ai đâu sao nhất mọi hai khác giữa cùng do qua "
        "thêm",
        "Mỗi buổi sáng, bọn trẻ cùng nhau đi bộ đến trường và mẹ chúng nhìn theo từ cửa sổ. Tôi muốn biết bạn nghĩ "
        "gì về câu hỏi này trước khi chúng ta quyết định điều gì. Có nhiều lý do khiến chúng ta nên ăn nhiều rau "
        "hơn, mặc dù hầu hết mọi người thích đồ ngọt. Hôm qua trời lạnh, nhưng hôm nay mặt trời tỏa sáng và mọi "
        "người làm việc ngoài trời. Xin hãy viết tên của bạn và chọn câu trả lời tốt nhất. Hạnh phúc không chỉ phụ "
        "thuộc vào tiền bạc mà còn vào sức khỏe và những người bạn ở gần.",
    ),
    "sw": Sample(
        "na ya wa kwa ni za katika la cha kuwa hii hiyo au pia kama watu si yake wake lakini kutoka baada ambayo "
        "ambao mimi wewe sisi ninyi wao yeye huo hao hilo huu sana kila moja mbili zaidi bila hadi kabla wakati "
        "mwaka siku yangu yako yetu yao wangu wako wetu vya vile hivyo kwamba ili ikiwa je nini nani wapi tu bado "
        "tena kati ndani",
        "Kila asubuhi watoto wanatembea pamoja kwenda shuleni na mama yao anawaangalia kutoka dirishani. Ningependa "
        "kujua unafikiri nini kuhusu swali hili kabla hatujaamua chochote. Kuna sababu kadhaa kwa nini tunapaswa "
        "kula mboga zaidi, ingawa wengi wanapenda kitu kitamu. Jana kulikuwa na baridi, lakini leo jua linawaka na "
        "kila mtu anafanya kazi nje. Tafadhali andika jina lako na uchague jibu bora. Furaha haitegemei pesa tu "
        "bali pia afya na marafiki walio karibu nasi.",
    ),
    "ru": Sample(
        "и в не на я быть он с что а по это она этот к но они мы весь который из у то за свой ещё еще от так о для "
        "ты же все год человек как бы до вы если уже или ни был была было были его её ее их меня мне тебя нас вас "
        "только когда где чтобы может можно нужно очень также при есть после более этого эта эти том чем без под "
        "над во со",
        "Каждое утро дети вместе идут в школу, а их мать смотрит на них из окна. Я хотел бы узнать, что вы думаете "
        "об этом вопросе, прежде чем мы что-нибудь решим. Есть несколько причин, почему нам следует есть больше "
        "овощей, хотя большинство предпочитает что-нибудь сладкое. Вчера было холодно, но сегодня светит солнце, и "
        "все работают на улице. Пожалуйста, напишите своё имя и выберите лучший ответ. Счастье зависит не только от "
        "денег, но и от здоровья и друзей, которые находятся рядом. Новая книга лежит на большом столе, старая "
        "стояла на полке; хорошие люди помогали молодому учителю читать первые страницы.",
    ),
    "uk": Sample(
        "і в не на я бути він з що а по це вона цей до але вони ми весь який із у та за свій ще від так о для ти ж "
        "все рік людина як би ви якщо вже або ні був була було були його її їх мене мені тебе нас вас тільки коли "
        "де щоб може можна треба дуже також при є після більше цього ця ці тому чим без під над й хоча між про тут "
        "там",
        "Щоранку діти разом ідуть до школи, а їхня мати дивиться на них з вікна. Я хотів би знати, що ви думаєте "
        "про це питання, перш ніж ми щось вирішимо. Є кілька причин, чому нам слід їсти більше овочів, хоча "
        "більшість віддає перевагу чомусь солодкому. Учора було холодно, але сьогодні світить сонце, і всі працюють "
        "надворі. Будь ласка, напишіть своє ім'я та виберіть найкращу відповідь. Щастя залежить не лише від грошей, "
        "а й від здоров'я та друзів, які є поруч.",
    ),
    "bg": Sample(
        "и на в да е за се от не с по че са до като ще това но си при има той тя те ние вие аз ти който която което "
        "които или след беше бъде към още този тази тези само във със може много ги му го ми ни й все така ако "
        "когато къде защо какво между без над под преди около също вече няма съм сме сте бил била било били тук там "
        "един една",
        "Всяка сутрин децата вървят заедно към училището, а майка им ги гледа от прозореца. Бих искал да знам какво "
        "мислите по този въпрос, преди да решим нещо. Има няколко причини, поради които трябва да ядем повече "
        "зеленчуци, въпреки че повечето хора предпочитат нещо сладко. Вчера беше студено, но днес слънцето грее и "
        "всички работят навън. Моля, напишете името си и изберете най-добрия отговор. Щастието зависи не само от "
        "парите, но и от здравето и от приятелите, които са наблизо.",
    ),
    "ar": Sample(
        "في من على إلى أن هذا هذه التي الذي كان لا ما عن مع أو كل بعد قد إن هو هي هم نحن أنا أنت كما لم لن بين عند "
        "ذلك تلك منذ حتى إذا غير أكثر قبل ولا ثم يكون كانت بن أي حيث لقد وقد وهو وهي فيه فيها منها عليه عليها له "
        "لها لهم به بها يمكن يجب أيضا أيضًا جدا خلال بسبب أجل الناس العالم اليوم",
        "كل صباح يمشي الأطفال معا إلى المدرسة وتنظر إليهم أمهم من النافذة. أود أن أعرف رأيك في هذا السؤال قبل أن "
        "نقرر أي شيء. هناك عدة أسباب تجعلنا نأكل المزيد من الخضروات، على الرغم من أن معظم الناس يفضلون شيئا حلوا. "
        "كان الجو باردا أمس، لكن الشمس مشرقة اليوم والجميع يعملون في الخارج. من فضلك اكتب اسمك واختر أفضل إجابة. لا "
        "تعتمد السعادة على المال فقط، بل على الصحة والأصدقاء القريبين أيضا.",
    ),
    "fa": Sample(
        "و در به از که این را با است برای آن یک خود تا کرد بر هم نیز گفت شد شده بود دارد می ما اما باید یا همه دیگر "
        "هر چه من تو او آنها شما ایشان ها های ای اگر پس بین پیش بعد فقط نیست هستند کند کرده کنند می‌شود می‌کند "
        "می‌توان نمی بسیار چون چرا کجا وقتی هنوز حتی روی زیر دو سال مردم کار خیلی خوب زیرا",
        "هر روز صبح بچه‌ها با هم به مدرسه می‌روند و مادرشان از پنجره به آنها نگاه می‌کند. می‌خواهم بدانم پیش از "
        "آنکه تصمیمی بگیریم نظر شما درباره این پرسش چیست. دلایل گوناگونی وجود دارد که چرا باید سبزیجات بیشتری "
        "بخوریم، هرچند بیشتر مردم چیزهای شیرین را ترجیح می‌دهند. دیروز هوا سرد بود، اما امروز آفتاب می‌تابد و همه "
        "بیرون کار می‌کنند. لطفا نام خود را بنویسید و بهترین پاسخ را انتخاب کنید. خوشبختی تنها به پول بستگی ندارد.",
    ),
    "ur": Sample(
        "کے کی میں کا ہے اور سے کو نے کہ یہ پر ہیں اس تھا ایک بھی ہو جو کر تو نہیں تھے تھی وہ ان گیا ہم آپ میں ہوں "
        "تم ہوا لیے کیا ہی اپنے اپنی کرنے جا رہا رہے رہی ساتھ بعد ہوتا ہوتی کرتے کرتا والے والی تک اگر لیکن پھر جب "
        "کچھ دو سب بہت گا گے گی چاہیے یا مگر کیونکہ جس جن کسی لوگ طرح دن وقت",
        "ہر صبح بچے اکٹھے اسکول جاتے ہیں اور ان کی ماں کھڑکی سے انہیں دیکھتی ہے۔ میں جاننا چاہتا ہوں کہ کوئی فیصلہ "
        "کرنے سے پہلے آپ اس سوال کے بارے میں کیا سوچتے ہیں۔ کئی وجوہات ہیں جن کی بنا پر ہمیں زیادہ سبزیاں کھانی "
        "چاہییں، حالانکہ اکثر لوگ میٹھی چیز پسند کرتے ہیں۔ کل سردی تھی، لیکن آج دھوپ نکلی ہے اور سب باہر کام کر رہے "
        "ہیں۔ براہ کرم اپنا نام لکھیں اور بہترین جواب چنیں۔ خوشی صرف پیسے پر نہیں بلکہ صحت پر بھی منحصر ہے۔",
    ),
    "hi": Sample(
        "के का की है में और को से हैं ने यह पर भी कि एक था इस लिए नहीं तो हो कर जो वह थे थी या साथ अपने तक कुछ ही "
        "हुआ गया गई रहा रहे रही आप हम मैं तुम वे उस उन इन अगर लेकिन क्योंकि जब तब बहुत सकता सकते करना करने होता "
        "होती किया दिया लोग बाद पहले सब कोई क्या कैसे क्यों कहाँ चाहिए वाला वाले वाली अपनी मेरा हमारे उनके जैसे",
        "हर सुबह बच्चे साथ में स्कूल जाते हैं और उनकी माँ उन्हें खिड़की से देखती है। मैं जानना चाहता हूँ कि कोई "
        "निर्णय लेने से पहले आप इस सवाल के बारे में क्या सोचते हैं। कई कारण हैं जिनकी वजह से हमें अधिक सब्ज़ियाँ "
        "खानी चाहिए, हालाँकि ज़्यादातर लोग कुछ मीठा पसंद करते हैं। कल ठंड थी, लेकिन आज धूप निकली है और सब बाहर काम "
        "कर रहे हैं। कृपया अपना नाम लिखें और सबसे अच्छा उत्तर चुनें। खुशी केवल पैसे पर नहीं, बल्कि स्वास्थ्य पर भी "
        "निर्भर करती है।",
    ),
    "mr": Sample(
        "आणि आहे या व ते हे तो ती मी आम्ही तुम्ही त्या त्यांनी त्याचा त्याची त्याने आहेत होते होता होती नाही साठी "
        "तर पण की किंवा मध्ये वर खूप काही एक दोन सर्व केले केली केला जाते जातो करण्यासाठी असे असा अशी म्हणून मला "
        "तुला आपण आपल्या त्यांच्या झाले झाला झाली होऊ शकते शकतो काय कसे का कुठे जेव्हा तेव्हा नंतर आधी लोक यांनी "
        "त्यामुळे आता परंतु असते",
        "दररोज सकाळी मुले एकत्र शाळेत जातात आणि त्यांची आई खिडकीतून त्यांच्याकडे पाहते. कोणताही निर्णय घेण्यापूर्वी "
        "या प्रश्नाबद्दल तुम्हाला काय वाटते हे मला जाणून घ्यायचे आहे. आपण जास्त भाज्या का खाव्यात याची अनेक कारणे "
        "आहेत, जरी बहुतेक लोकांना काहीतरी गोड आवडते. काल थंडी होती, पण आज ऊन पडले आहे आणि सर्वजण बाहेर काम करत "
        "आहेत. कृपया तुमचे नाव लिहा आणि सर्वोत्तम उत्तर निवडा. आनंद फक्त पैशावर अवलंबून नसतो, तर आरोग्यावरही "
        "अवलंबून असतो. नवीन पुस्तक मोठ्या टेबलावर ठेवले आहे; चांगल्या लोकांनी तरुण शिक्षकाला वाचायला आणि लिहायला "
        "मदत केली.",
    ),
    "ne": Sample(
        "र छ को मा ले लाई पनि यो त्यो हो छन् गर्न गरेको भएको भने तर एक का की बाट यस उनी उनले म हामी तपाईं तिमी "
        "उनीहरू हुन्छ थियो थिए छैन हुने गर्ने गरे गर्छ भयो भएका रहेको सबै धेरै केही कुनै वा अनि किनभने जब तब लागि "
        "सँग पछि अघि आफ्नो हाम्रो मेरो तपाईंको के कसरी किन कहाँ अब यसले त्यसैले हुन् सक्छ सक्छन् मानिस नेपाल दिन "
        "जस्तै भन्ने",
        "हरेक बिहान बालबालिकाहरू सँगै विद्यालय जान्छन् र उनीहरूकी आमा झ्यालबाट उनीहरूलाई हेर्छिन्। कुनै निर्णय "
        "गर्नुअघि तपाईं यस प्रश्नबारे के सोच्नुहुन्छ भनी म जान्न चाहन्छु। हामीले धेरै तरकारी खानुपर्ने थुप्रै "
        "कारणहरू छन्, यद्यपि धेरैजसो मानिसहरू गुलियो कुरा मन पराउँछन्। हिजो जाडो थियो, तर आज घाम लागेको छ र सबै जना "
        "बाहिर काम गरिरहेका छन्। कृपया आफ्नो नाम लेख्नुहोस् र सबैभन्दा राम्रो उत्तर छान्नुहोस्। खुसी पैसामा मात्र "
        "होइन, स्वास्थ्यमा पनि निर्भर हुन्छ।",
    ),
}
