"""How are letters found by values that are redacted, and how does a filter stand in the audit log?

Where a rule is searchable, a marker has a keyed hash of the value. A filter that asks for a value also asks for the markers that
it would have; so nothing else has to know about redaction. In the audit log no value stands that is redacted in letters.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from unpoison.filters.terms import And, Condition, Not, Or, Pattern, Term, Word
from unpoison.redaction.keys import Keys
from unpoison.redaction.markers import MASKED, with_token
from unpoison.redaction.redactor import Redactor, folded
from unpoison.redaction.rules import ANY, Parsed, Redact, parsed
from unpoison.redaction.walking import Paths

_ANYWHERE = ("body", "error", "traceback", "reason")
_EQUAL = (":", "=")


def with_tokens(term: Term, rules: Sequence[Redact], keys: Keys) -> Term:
    """The same filter, which also finds values that are redacted by searchable rules, with any of these keys."""
    searchable = [parsed(rule) for rule in rules if rule.searchable]
    if not searchable or not keys.all:
        return term

    def change(leaf: Word | Condition) -> Term:
        pattern = leaf.pattern if isinstance(leaf, Word) else leaf.value
        if not isinstance(pattern, Pattern) or pattern.has_stars or not pattern.text:
            return leaf
        if isinstance(leaf, Condition) and leaf.operator not in (*_EQUAL, "!="):
            return leaf
        meant = [each for each in searchable if _means(leaf, each)]
        markers = [with_token(key.token(each.rule.path, folded(pattern.text))) for each in meant for key in keys.all]
        return _any_of(leaf, markers) if markers else leaf

    return _changed(term, change)


def _any_of(leaf: Word | Condition, markers: Iterable[str]) -> Term:
    if isinstance(leaf, Word):
        return Or((leaf, *(Word(Pattern((marker,))) for marker in markers)))
    operator = ":" if leaf.operator == ":" else "="
    equal = replace(leaf, operator=operator)
    found = Or((equal, *(replace(equal, value=Pattern((marker,))) for marker in markers)))
    return Not(found) if leaf.operator == "!=" else found


def without_values(term: Term, redactor: Redactor) -> Term:
    """The filter without values that rules redact, and without words that may be such values."""
    rules = [parsed(rule) for rule in redactor.rules]

    def change(leaf: Word | Condition) -> Term:
        pattern = leaf.pattern if isinstance(leaf, Word) else leaf.value
        if not isinstance(pattern, Pattern):
            return leaf
        is_free = isinstance(leaf, Word) or (leaf.field == "body" and not leaf.path)
        if is_free or any(each.place != "pattern" and _means(leaf, each) for each in rules):
            said: Pattern | None = Pattern((MASKED,))
        else:
            said = _without_patterns(pattern, rules)
        if said is None:
            return leaf
        return Word(said) if isinstance(leaf, Word) else replace(leaf, value=said)

    return _changed(term, change)


def _without_patterns(pattern: Pattern, rules: Iterable[Parsed]) -> Pattern | None:
    """None if there is nothing to change."""
    has = any(each.pattern is not None and each.pattern.in_text(pattern.text) for each in rules)
    return Pattern((MASKED,)) if has else None


def _means(leaf: Word | Condition, rule: Parsed) -> bool:
    """Whether what the rule redacts may be what is asked for here."""
    if isinstance(leaf, Word) or (leaf.field in _ANYWHERE and not leaf.path):
        return isinstance(leaf, Word) or rule.place in ("pattern", "body")
    match rule.place:
        case "pattern":
            return leaf.field in ("body", "header", "key")
        case "key":
            return leaf.field == "key"
        case "header":
            return leaf.field == "header" and (rule.steps[0] == ANY or str(rule.steps[0]).lower() == str(leaf.path[0]).lower())
        case _:
            return leaf.field == "body" and _covers(rule, leaf.path)


def _covers(rule: Parsed, path: Sequence[str | int | None]) -> bool:
    """Whether the rule hits what is at this path, or something around it."""
    paths = Paths([rule])
    state = paths.start
    for step in path:
        if paths.hits(state):
            return True
        state = (
            paths.into_member(state, step) if isinstance(step, str) else paths.into_element(state, 0 if step is None else step)
        )
    return bool(paths.hits(state))


def _changed(term: Term, change: Callable[[Word | Condition], Term]) -> Term:
    match term:
        case Not(inner):
            return Not(_changed(inner, change))
        case And(terms):
            return And(tuple(_changed(each, change) for each in terms))
        case Or(terms):
            return Or(tuple(_changed(each, change) for each in terms))
    return change(term)
