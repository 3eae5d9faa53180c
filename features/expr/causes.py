"""The stable codes of mistakes (`Mistake.kind`), each with what it means in one sentence.

A code is what tools and tests match on; messages may change, codes do not. `tests/features/expr/test_causes.py` fails when
code in any room uses one that is not here.
"""

from __future__ import annotations

from typing import Final

CAUSES: Final[dict[str, str]] = {
    # files and YAML
    "unreadable": "The file cannot be read.",
    "encoding": "The file is not UTF-8.",
    "limit": "Something is larger, longer, deeper or costlier than is allowed.",
    "yaml": "The file is not valid YAML.",
    "yaml-trap": "YAML reads this text as something else than an expression; quotes make it one.",
    "anchor": "YAML anchors, aliases and merges are not used here.",
    "duplicate-key": "A mapping has the same key twice.",
    "extra-key": "A mapping has a key that does not belong there.",
    "key": "This cannot be the key of an entry, or of an entity.",
    "shape": "A mapping, a list or a single value is expected, and this is another of them.",
    "unknown-key": "A mapping has a key that is not known there.",
    "missing": "Something that must be given is not there.",
    "name": "This cannot be a name, or the name is taken.",
    "duplicate": "Two things have the same name.",
    "path": "This cannot be the path of a file beside this one.",
    "unknown": "A name refers to something that is not declared.",
    "value": "The value is not one of those that are possible here.",
    "choice": "The value is not one of those that are possible here.",
    "bound": "A number is outside of its bounds, or the bounds are wrong.",
    "duration": "This is not a duration.",
    "time": "This is not a time.",
    "status": "This is not the status of a feature.",
    "too-many": "There are more entries than are allowed.",
    # expressions
    "syntax": "The expression cannot be read.",
    "literal": "A literal has no value: it does not fit, or its text has the wrong form.",
    "unknown-name": "An expression reads a name that is not known there.",
    "unknown-function": "An expression calls a function that does not exist.",
    "type": "A value has another type than is needed there.",
    "nullable": "A value may be null where one is needed.",
    "int-division": "Division of two ints is written div(a, b), or as a division of doubles.",
    "strict": "This is not part of CEL, which the strict mode keeps to.",
    "sql": "SQL cannot say this with the same meaning.",
    "unit-mismatch": "Two values whose units differ are added, compared or divided.",
    "always-true": "A test is true whatever the values are.",
    "always-false": "A test is false whatever the values are.",
    "always-fails": "A computation has no value for any row.",
    "never-null": "A test for null, or a default for it, stands where null cannot be.",
    "zero-divisor": "A divisor is always zero.",
    # features and labels
    "feature": "A feature is declared by an aggregate or by an expression, with the keys that go with it.",
    "window": "A window or its hop has an impossible length, or does not go with the aggregate.",
    "cycle": "Things depend on each other in a circle.",
    "tests": "The file of tests is not there.",
    "expect": "A test came out differently than it expects.",
    # strategies
    "view": "A role names a view that does not exist, or whose key nobody has.",
    "model": "A model is declared or read in a way that cannot work.",
    "rule": "A rule does not say exactly one thing to do, or says it twice.",
    "table": "A decision table, or a name of it, is declared in a way that cannot work.",
    "csv": "The CSV of a table cannot be read.",
    "cell": "A cell of a table has no meaning for its column.",
    "unknown-column": "A column of a table is not a name that is known there.",
    "layer": "A parameter, an experiment and a layer do not go together.",
    "unit": "This cannot be the unit that an experiment splits by.",
    "salt": "Two hashes that must be independent have the same salt.",
    "share": "The shares of the arms are no shares, or more than 1 together.",
    "conflict": "Two experiments of one layer can meet in one request.",
    "request": "The engine refuses the request of a test.",
    # analysis of strategies
    "gap": "A combination of values that can come fits no row of a table, which makes a row error.",
    "overlap": "Two rows of a table that must not meet fit the same values.",
    "unreachable-row": "A row of a table can never count.",
    "duplicate-row": "Two rows of a table fit exactly the same values.",
    "no-effect": "A column of a table never changes the answer.",
    "not-decided": "A question about a table is too large to be answered.",
    "never-fires": "A rule can never fire.",
    "always-fires": "A rule fires for every candidate that reaches it.",
    "shadowed": "Rules before this one have dropped every candidate that it is for.",
    "overwritten": "What a rule does to a score is always set over by a later rule.",
    "write-conflict": "A rule sets a score that an earlier rule has changed for the same candidate.",
    "unused": "Something is declared and never read.",
    "undeclared-missing": "A value that can be missing then breaks a rule or the score, and nothing says what that means.",
}
