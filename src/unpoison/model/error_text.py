"""What is left of an error's text once the values of one message are taken out?

`gist` replaces ids, numbers, times, addresses, paths, mail addresses, quoted values and data structures by `*`. Names of the code
and of the database stay, and so do codes that say what went wrong: an HTTP status, an SQLSTATE, an exit status.

Every pattern passes over the text once: a quantifier is possessive or bounded. Only the first characters are looked at.
"""

import re
from collections.abc import Callable

READ = 1_000
"""Characters that are read: no more than what `failure.cap` leaves of the beginning of a long text."""
LENGTH = 160


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAMING = words("KeyError AttributeError NameError UnboundLocalError ImportError ModuleNotFoundError TypeError")
"""What these builtins quote are names of the code, or keys of a dict."""

_NAMED_BY = words(
    """argument arguments attribute class codec collection column constraint database enum exchange extension field fields
    function header index key keyword method module object operation operator option parameter property queue relation schema
    sequence setting stream table topic type variable vhost view"""
)
"""What is quoted after one of these words is a name."""

_TYPES = words(
    """any array bool bytearray bytes date datetime decimal dict duration enum ext float frozenset int list null number object
    set str string time timedelta tuple uuid"""
)

_KEPT_DIGITS = "".join(chr(0xE000 + n) for n in range(10))
_KEEP, _BACK = str.maketrans("0123456789", _KEPT_DIGITS), str.maketrans(_KEPT_DIGITS, "0123456789")
"""Digits that are to stay are put out of the way of what takes numbers out."""

_ERRORS = frozenset(map(str, (*range(400, 419), *range(421, 427), 428, 429, 431, 451, *range(500, 512), *range(520, 528))))
_STATUS = re.compile(r"(?<![\w.-])[1-5]\d\d(?![\w-]|\.\d)")
_PHRASE = re.compile(
    r"[ \t:,-]{1,3}(?:Client Error|Server Error|Bad Request|Unauthorized|Payment Required|Forbidden|Not Found|Method Not Allowed|"
    r"Conflict|Gone|Precondition Failed|Unprocessable|Too Many Requests|Internal Server Error|Bad Gateway|Service Unavailable|"
    r"Gateway Time-?out|message=)",
    re.IGNORECASE,
)
_SAYS_STATUS = re.compile(
    r"(?:\bhttp(?:/[0-9.]{1,3})?|\bstatus|code|<Response|[a-z](?:Error|Exception))['\"]?[ \t:=(\[]{1,3}$", re.IGNORECASE
)
_ANSWERS = re.compile(
    r"\b(?:error|occurred|response|answer(?:ed|s)?|repli(?:ed|es)|respond(?:ed|s)?|return(?:ed|s)|got)(?: with)?[ \t:=(\[]{1,3}$",
    re.IGNORECASE,
)
_ENDS = re.compile(r"[ \t]*$|[^\w \t]| (?:to|for|from|on|in|at|after|while|when|and|by|but|instead)\b")
_CODES = tuple(
    (word, re.compile(pattern, re.IGNORECASE))
    for word, pattern in (
        ("sqlstate", r"SQLSTATE[ \t:=\[(]{1,3}([0-9A-Z]{5})(?!\w)"),
        ("ora-", r"\b(ORA-\d{5})(?!\d)"),
        ("exit ", r"\bexit (?:status|code)[ \t:=]{0,2}(-?\d{1,5})(?!\w|\.\d)"),
        ("signal ", r"\bsignal[ \t:=]{1,2}(\d{1,2})(?!\w|\.\d)"),
        ("err_code", r"\berr_code=(\d{1,6})(?!\w)"),
        ("(", r"^(?:\([\w.]{1,100}\) )?\((\d{3,5})\)"),
        (" (", r"^(\d{4} \([0-9A-Z]{5}\)):"),
    )
)
"""Other codes, each with a word without which it is not looked for."""

_DETAILS = re.compile(r"\n(?:DETAIL:|CONTEXT:|LINE \d+:|QUERY:|\[parameters:|[ \t]*+debug_error_string).*", re.DOTALL)
_BACKGROUND = "(Background on this error at:"
_HINTS = re.compile(r"[.?]?\s(?:Or did you|Did you (?:mean|forget)|\(consider renaming).*", re.DOTALL)
_COMMAND = re.compile(r"^Command '.*' (?=returned|timed out|died)", re.DOTALL)
_CODE_AND_TEXT = re.compile(r"^(\([\w.]{1,100}\) )?\((\d{3,5}), b?(['\"])([^\n]*)\3\)(?=\n|\Z)")
"""MySQL, AMQP, SMTP: the exception was made of a code and a text. SQLAlchemy puts the type before it."""
_PARTS = re.compile(r"\s\(\d+ sub-exceptions?\)")
_UNHASHABLE = re.compile(r"cannot use '[^']*' as an? [\w ]{1,30} \((unhashable type: '[^']*')\)")
_ONLY_A_MEMBER = re.compile(r"\)=\([^()]*\)")

_URL = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*+://[^\s'\"<>\])}]*+")
_DRIVE = re.compile(r"(?<!\w)[A-Za-z]:[\\/][^\s'\"<>\])}]*+")
_HOST_AND_PORT = re.compile(r"(?<![\w.-])(?:\w[\w-]*+\.)++\w[\w-]*+:\d{1,5}(?!\w)")
_TO_A_HOST = re.compile(r"\b(host|server|to|from|at|on|with|via) \w[\w-]*+:\d{2,5}(?!\w)", re.IGNORECASE)
_QUOTED = re.compile(
    r"(?<!\w)'(?P<a>(?:[^'\\]|\\.|'(?=\w))*+)(?:'|\Z)|(?<!\w)\"(?P<b>(?:[^\"\\]|\\.|\"(?=\w))*+)(?:\"|\Z)"
    r"|`(?P<c>[^`]*+)(?:`|\Z)|[“„«「『‹](?P<d>[^”“»」』›\n]*+)[”“»」』›]",
    re.DOTALL,
)
_BYTES = re.compile(r"(?<!\w)[bBrRuU]{1,2}(?=['\"])")
_BEFORE = re.compile(r"(\w+)[\s:=]{0,3}$")
_NAME = re.compile(r"[^\W\d]\w*+(?:[.-]\w++)*+(?:\(\))?|<\w++>")
_TOKEN = re.compile(r"[^\s,;:=()\[\]{}<>|'\"`*]+")
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\}?")
_DIGIT = re.compile(r"\d")
_SEGMENTS = re.compile(r"[^_.-]+")
_OF_A_CLASS = re.compile(r"(?<![^\W_])(?=[a-f]*\d)[0-9a-f]{6,}(?![^\W_])|\d+")
_ENUMERATED = re.compile(r"([^\W\d]{3,})\d{1,2}")
_CONSTANT = re.compile(r"([=:,(\[{]\s?)(?:True|False|None|null|true|false|nan|inf)(?!\w)")

_BRACKETS = re.compile(r"\[(?:(\d+)|'([^']*)')\]")

_SIGN = re.compile(r"(?<![\w*])[-+$€£#~]++\*|\*%")
_RUN = re.compile(r"\*(?:[\s,;:=./_|+-]*+\*)++")
_GROUP = re.compile(r"[\[({<][\s*,;:=.-]*+[\])}>]")
_PLURAL = re.compile(r"(\* [^\W\d_]{2,30}?)s\b")


def gist(text: str, kind: str = "") -> str:
    """The text without values; `kind` is the type of the exception. Equal for errors that differ in values only."""
    text = text[:READ]
    names = kind in _NAMING
    if kind == "KeyError":
        text = _of_key(text)
    text = _prepared(text)
    text = _with_codes(_BYTES.sub("", text))
    text = _URL.sub("*", text)
    text = _DRIVE.sub("*", text)
    text = _QUOTED.sub(_in_quotes(names), text)
    text = _TO_A_HOST.sub(r"\1 *", _HOST_AND_PORT.sub("*", text))
    text = _ONLY_A_MEMBER.sub(")=(*)", text)
    text = _TOKEN.sub(_token, text)
    return " ".join(_without_runs(text).split())[:LENGTH].rstrip().translate(_BACK)


def path_in_data(path: str) -> str:
    """The path of a field, without the positions in lists and without keys that are ids: `$.lines.*.total`."""
    steps = _BRACKETS.sub(lambda found: f".{found[1] or found[2]}", path[:READ]).split(".")
    return ".".join(step if step == "$" or _is_name(step) else "*" for step in steps)


def name(text: str) -> str:
    """A name of a type, without the numbers and ids of a class that was made for one message."""
    return _OF_A_CLASS.sub("*", text[:READ]).removeprefix("__main__.").removeprefix("__mp_main__.")


def _of_key(text: str) -> str:
    """The text of a KeyError is the repr of its key. One of several words is a sentence of the handler's."""
    inner = text[1:-1] if text[:1] in "'\"" and text[-1:] == text[:1] else ""
    return inner if len(inner.split()) > 2 else text


def _prepared(text: str) -> str:
    """Without what clients and Python add to a message for the reader of one error."""
    text = _DETAILS.sub("", text.partition(_BACKGROUND)[0])
    text = _HINTS.sub("", text)
    text = _CODE_AND_TEXT.sub(r"\1(\2) \4", text)
    text = _COMMAND.sub("Command * ", text)
    text = _PARTS.sub("", text)
    return _UNHASHABLE.sub(r"\1", text)


def _with_codes(text: str) -> str:
    """With the digits of codes put out of the way."""
    text = _STATUS.sub(_status, text)
    lowered = text.lower()
    for word, pattern in _CODES:
        if word in lowered:
            text = pattern.sub(_kept, text)
    return text


def _status(found: re.Match[str]) -> str:
    """An HTTP status, which is told by what stands around it from a number like any other."""
    text, start, end = found.string, found.start(), found.end()
    before, after = text[max(0, start - 24) : start], text[end : end + 24]
    is_error = found[0] in _ERRORS and _ANSWERS.search(before) and _ENDS.match(after)
    return found[0].translate(_KEEP) if is_error or _PHRASE.match(after) or _SAYS_STATUS.search(before) else found[0]


def _kept(found: re.Match[str]) -> str:
    whole, start = found[0], found.start()
    return whole[: found.start(1) - start] + found[1].translate(_KEEP) + whole[found.end(1) - start :]


def _in_quotes(all_are_names: bool) -> Callable[[re.Match[str]], str]:
    def replaced(found: re.Match[str]) -> str:
        inner = next((group for group in found.groups() if group is not None), "")
        if not inner or len(inner) > 100:
            return "*"
        if found["c"] is not None and (inner.startswith("$") or _TYPES.issuperset(re.split(r"\W+", inner))):
            return path_in_data(inner) if inner.startswith("$") else inner
        if inner[0] in _KEPT_DIGITS:
            return inner  # as in '401 Unauthorized'
        before = _BEFORE.search(found.string[max(0, found.start() - 24) : found.start()])
        is_name = all_are_names or (before is not None and before[1].lower() in _NAMED_BY)
        return inner if is_name and _is_name(inner) else "*"

    return replaced


def _is_name(text: str) -> bool:
    return len(text) <= 80 and _NAME.fullmatch(text) is not None and not _SEGMENTS.sub(_segment, text).startswith("*")


def _token(found: re.Match[str]) -> str:
    """What stands between spaces and brackets. Without digits it is a word, unless it is a path, an address or a long code."""
    token = found[0]
    if token.isalpha() and len(token) <= 60:
        return token
    if _DIGIT.search(token) is None:
        is_path = token.startswith(("/", "~/", "./", "../")) or "\\" in token or token.count("/") > 1
        is_value = is_path or len(token) > 60 or ("@" in token.strip("@") and "." in token) or _UUID.fullmatch(token)
        return "*" if is_value else token
    is_value = "/" in token or "\\" in token or "@" in token or len(token) >= 40 or _UUID.fullmatch(token)
    return "*" if is_value else _SEGMENTS.sub(_segment, token)


def _segment(found: re.Match[str]) -> str:
    segment = found[0]
    if segment.isalpha() or _DIGIT.search(segment) is None:
        return segment
    enumerated = _ENUMERATED.fullmatch(segment)
    return f"{enumerated[1]}*" if enumerated else "*"


def _without_runs(text: str) -> str:
    """One `*` for a list of values, and for a data structure that holds nothing else."""
    text = _CONSTANT.sub(r"\1*", text)
    for _ in range(3):
        text = _RUN.sub("*", _SIGN.sub("*", text))
        if (shorter := _GROUP.sub("*", text)) == text:
            break
        text = shorter
    return _PLURAL.sub(r"\1", text)
