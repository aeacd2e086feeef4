"""The words of number names in English and Korean. The tests compare them with num2words."""

SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DIGITS = "영일이삼사오육칠팔구"
PLACES = {1000: "천", 100: "백", 10: "십"}


def english(number: int) -> str:
    """Return the name of 0 ... 99, such as forty-two."""
    if number < len(SMALL):
        return SMALL[number]
    tens, ones = divmod(number, 10)
    name = TENS[tens - 2]
    return f"{name}-{SMALL[ones]}" if ones else name


def korean(number: int) -> str:
    """Return the name of 0 ... 9,999, such as 이백이십이. A one is written in the last place only."""
    name = ""
    for place, sign in PLACES.items():
        digit = number // place % 10
        if digit > 1:
            name += DIGITS[digit]
        if digit:
            name += sign
    ones = number % 10
    return name + DIGITS[ones] if ones or not name else name
