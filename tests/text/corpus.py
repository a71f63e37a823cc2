"""Texts that are hard to tokenize: by hand, and at random from a seed.

The random ones are the same in every Python: they use nothing but `Random.random`, and no table of
Unicode.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")

WORDS = [
    "",
    " ",
    "a",
    "Hello, world!",
    " Hello",
    "Hello ",
    "  two  spaces  ",
    "don't they'll WE'RE I'd you've it's 'tis 'S'T'RE 'sS 'Ve",
    "x'ſ ’s ‘t 's",
    "camelCaseHTTPServer_snake_case-kebab",
    "3.14159 1,000,000 12345678901234567890 0x1F 1e-9 ½ ² ٣٤٥ १२३ Ⅷ ㊿ 𝟘𝟙 十二",
    "1 12 123 1234 12345 a1b22c333d4444",
    "e = mc², ∑ᵢ xᵢ ≤ ∞ ⇒ ∀x∈ℝ: √(x²) = |x|; £5 + €6 ≠ ¥7 ± 8‰",
    "!!! ??? ... --- === *** ((())) [[]] {{}} <<>> @#$%^&*~`|\\/",
    "`a` $b$ +c+ ^d^ ~e~ |f| <g> =h= «i» „j“ ¿k? ¡l!",
    "https://example.org:8080/a/b?c=d&e=%20f#g user@example.com",
]
SCRIPTS = [
    "Größe, Äpfel, Übergrößenträger, naïve façade, Œuvre, Łódź, İstanbul ıiIİ",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку. Ёлка",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. ΆΈΉ",
    "الثعلب البني السريع يقفز فوق الكلب الكسول. مُحَمَّد ـــ ١٢٣",
    "השועל החום המהיר קופץ מעל הכלב העצלן. שָׁלוֹם",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है। क्षत्रिय",
    "দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়।",
    "வேகமான பழுப்பு நரி சோம்பேறி நாயின் மேல் தாவுகிறது",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "敏捷的棕色狐狸跳过了懒狗。繁體中文，標點「引號」！",
    "素早い茶色の狐はのろまな犬を飛び越える。カタカナ ｶﾀｶﾅ ー々〆",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다. ㄱㄴㄷ 각",
    "ሰላም ለዓለም ՈՂՋՈՒՅՆ გამარჯობა ᏣᎳᎩ ᓄᓇᕗᑦ ᠮᠣᠩᠭᠣᠯ བོད་ ភាសាខ្មែរ မြန်မာ",
    "𐍈𐌰𐌹 𓀀𓀁 𒀀 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝓈𝒸𝓇𝒾𝓅𝓉 𠀀𠮷 ﷽ ﬁ ﬃ Ǆ ǅ",
]
MARKS = [
    "e\u0301 a\u0308\u0323 \u0301lone Z\u0336a\u0334l\u0335g\u0337o\u0338 n\u0303\u0303\u0303",
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 🧑🏿‍🚀 ❤️ ☺︎ 1️⃣ #️⃣ 👩🏻‍❤️‍💋‍👨🏿 🫠🫨",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "zero\u200bwidth\u200cjoin\u200dhere\ufeffbom \u202eright\u202c \u2066i\u2069 soft\u00adhyphen",
    "\u2581\u2581a \u2581b \u2581 Ġ Ċ ĠĠ Ā ģ ł",
    "\ufffd\ufffe\uffff\U0010ffff\ue000\U000f0000 \u0378",
    "\U00010d40\u1c89\U00016d6d\ua7cb \U0001ccf0 \U0001cc00 \u0897",  # new in Unicode 16
]
SPACES = [
    "\n",
    "\n\n\n",
    "\r\n\r\n",
    "\t\t a\t b",
    "a \n b\n  c\n\n   d \n",
    "a\r\nb\rc\n\rd",
    " \n \n\t\n",
    "end   ",
    "end\n\n",
    "\n  \n  x",
    "a" + " " * 40 + "b" + " " * 17,
    "\t" * 33 + "x" + "\n" * 35 + "y",
    "a\u00a0b\u2003c\u3000d\u1680e\u2028f\u2029g\u0085h\u000bi\u000cj\u202fk\u205fl",
    " \u00a0 \u3000\u3000 x",
    ", \n; \r\n! \n\n",
    ".\n\n...\n? \r\n",
]
CONTROLS = [
    "\0",
    "a\0b\x01\x02\x1b[31mred\x1b[0m\x7f\x80\x9f",
    "".join(map(chr, range(0x20))),
    "".join(map(chr, range(0x20, 0x100))),
]
CODE = [
    'def f(x: int) -> str:\n    """Doc."""\n    return f"{x!r:>{10}}"\n\n\nif x == "__main__":\n',
    "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i] * 3.0f; // comment\n\t}\n}\n",
    '{"key": [1, 2.5, null, true], "\\u00e9": "\\n"}',
    '<table><tr><td class="x">a &amp; b</td></tr></table><s>gone</s><!-- c -->',
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';\n-- done",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n- [ ] todo\n```sh\n$ ls -la | grep '^d' > o 2>&1\n```",
    "\\frac{a}{b} \\sum_{i=0}^{n} x_i^2 $$\\alpha$$",
    "x" * 300,
    "ab" * 200 + "=" * 100 + "-" * 64 + "a" * 65,
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor. " * 4,
]
SPECIALS = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|>",
    " <|im_end|> ",
    "<|im_start|><|im_start>|im_start|><|im_end|",
    "<<|im_end|>>",
    "<bos><bos>a<eos></s>b<pad><unk><s>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<unused5><unused99><mask>[multimodal] <repo_name><reponame>",
    "<0x0A><0x41><0xFF> <0x>",
    "[INST] Hi [/INST] <|begin_of_text|><|eot_id|><|file_sep|><file_sep>",
]
HARD = [*WORDS, *SCRIPTS, *MARKS, *SPACES, *CONTROLS, *CODE, *SPECIALS]

# From where random characters come, and how often.
RANGES = [
    (6, 0x20, 0x7E),
    (3, 0x20, 0x20),
    (1, 0x09, 0x0D),
    (1, 0x00, 0x1F),
    (2, 0xA0, 0x24F),
    (1, 0x300, 0x36F),
    (2, 0x370, 0x5FF),
    (2, 0x600, 0x1FFF),
    (1, 0x2000, 0x2FFF),
    (2, 0x3000, 0x9FFF),
    (1, 0xA000, 0xD7FF),
    (1, 0xE000, 0xFFFF),
    (2, 0x1F000, 0x1FAFF),
    (1, 0x10000, 0x10FFFF),
]
MORSELS = ["the", " and", "'s", "'LL", "\r\n", "   ", "\n\n", "123", "<|im_end|>", "<bos>", "</s>"]


def random_texts(n: int, seed: int = 1) -> Iterator[str]:
    """n texts of 0 to 47 characters or morsels, of a few kinds each."""
    draw = Random(seed).random
    lottery = [bounds for weight, *bounds in RANGES for _ in range(weight)]

    def pick(items: Sequence[Item]) -> Item:
        return items[int(draw() * len(items))]

    for _ in range(n):
        kinds = [pick(lottery) for _ in range(1 + int(draw() * 4))]
        length = int(draw() * draw() * 48)
        text = ""
        for _ in range(length):
            first, last = pick(kinds)
            text += pick(MORSELS) if draw() < 0.1 else chr(first + int(draw() * (last + 1 - first)))
        yield text


def digest(ids: Sequence[int]) -> int:
    """32 bits that tell lists of ids apart."""
    return zlib.crc32(b"".join(token.to_bytes(4, "little") for token in ids))
