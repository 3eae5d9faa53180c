"""Tokens to tree: a precedence climber for CEL's grammar.

From loose to tight: `? :`, `||`, `&&`, relations and `in`, `??`, `+ -`, `* / %`, unary `! -`, calls and methods.
Text length, number of nodes and depth are limited here: the later phases may recurse. Read `checker.py` next.
"""

from __future__ import annotations

from typing import Final, NoReturn

from features.expr.errors import Mistake, mistake_at
from features.expr.lexer import Stop, Token, lex
from features.expr.nodes import Bad, Binary, Call, In, InList, Literal, Logic, Macro, Name, Node, Ternary, Unary
from features.expr.source import SourceText
from features.expr.types import FUNCTIONS, INT_MAX, INT_MIN, MACROS, METHODS

MAX_TEXT: Final = 32_768
MAX_NODES: Final = 4_096
MAX_DEPTH: Final = 50  # nested parentheses, calls or a chain of `+`; a level costs the parser a dozen Python frames

_RELATIONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_ARITHMETIC: Final = ({"+", "-"}, {"*", "/", "%"})


def parse(source: SourceText) -> tuple[Node | None, list[Mistake]]:
    """The tree and the mistakes found so far; no tree when the text cannot be read to its end."""
    mistakes: list[Mistake] = []
    if len(source.text) > MAX_TEXT:
        message = f"the expression has {len(source.text)} characters; {MAX_TEXT} are allowed"
        return None, [mistake_at(source, 0, 1, "limit", message, "split it into several named expressions")]
    try:
        tokens = lex(source, mistakes)
        return _Parser(source, tokens, mistakes).run(), mistakes
    except Stop:
        return None, mistakes
    except RecursionError:  # the caller was deep in its own calls already
        message = "the expression is nested too deeply"
        return None, [mistake_at(source, 0, 1, "limit", message, "split it into several named expressions")]


class _Parser:
    """Tokens to tree."""

    def __init__(self, source: SourceText, tokens: list[Token], mistakes: list[Mistake]) -> None:
        self.source, self.tokens, self.mistakes = source, tokens, mistakes
        self.pos = 0
        self.num_nodes = 0
        self.level = 0
        self.in_parentheses: set[int] = set()  # id() of nodes written in parentheses; all live until the end
        self.keep: list[Node] = []

    def run(self) -> Node:
        if self.now.kind == "end":
            self._fail(self.now, "the expression is empty")
        node = self.ternary()
        if self.now.kind != "end":
            self._fail(self.now, f"unexpected {self._quoted(self.now)}", self._stray_hint(self.now))
        return node

    # one method a level of precedence -------------------------------------------------------------------------------

    def ternary(self) -> Node:
        self.level += 1
        if self.level > MAX_DEPTH:
            self._too_deep(self.now.start)
        condition = self.logic("||")
        if self._at("?"):
            self._take()
            then = self.ternary()
            self._expect(":", "a ternary is 'condition ? a : b'")
            otherwise = self.ternary()
            condition = self._made(
                Ternary(condition.start, otherwise.end, _depth(condition, then, otherwise), condition, then, otherwise)
            )
        self.level -= 1
        return condition

    def logic(self, op: str) -> Node:
        items = [self.logic("&&") if op == "||" else self.relation()]
        while self._at(op):
            self._take()
            items.append(self.logic("&&") if op == "||" else self.relation())
        if len(items) == 1:
            return items[0]
        return self._made(Logic(items[0].start, items[-1].end, _depth(*items), op, tuple(items)))

    def relation(self) -> Node:
        left = self.coalesce()
        while True:
            token = self.now
            if token.kind == "op" and token.text in _RELATIONS:
                self._take()
                left = self._binary(token, left, self.coalesce())
            elif token.kind == "word" and token.text == "in":
                self._take()
                left = self._in(left)
            else:
                return left

    def coalesce(self) -> Node:
        items, tokens = [self.arithmetic(0)], []
        while self._at("??"):
            tokens.append(self._take())
            items.append(self.arithmetic(0))
        if not tokens:
            return items[0]
        for item in items:
            arithmetic = isinstance(item, Binary) and item.op in "+-*/%"
            if arithmetic and id(item) not in self.in_parentheses:
                text = self.source.text[item.start : item.end]
                message = "'??' beside '+ - * / %' needs parentheses"
                self._note(
                    item.start,
                    item.end,
                    "syntax",
                    message,
                    f"write ({_short(text)}), or put '(… ?? …)' around the default",
                )
        right = items.pop()
        while items:  # from the right: a ?? (b ?? c)
            right = self._binary(tokens.pop(), items.pop(), right)
        return right

    def arithmetic(self, level: int) -> Node:
        if level == len(_ARITHMETIC):
            return self.unary()
        left = self.arithmetic(level + 1)
        while self.now.kind == "op" and self.now.text in _ARITHMETIC[level]:
            token = self._take()
            left = self._binary(token, left, self.arithmetic(level + 1))
        return left

    def unary(self) -> Node:
        signs: list[Token] = []
        while self._at("!") or self._at("-"):
            signs.append(self._take())
            if len(signs) > MAX_DEPTH:
                self._too_deep(signs[0].start)
        if signs and signs[-1].text == "-" and self.now.kind in ("int", "double"):
            minus, token = signs.pop(), self._take()
            node: Node = self._number(token, minus)
            node = self._methods(node)
        else:
            node = self.postfix()
        for token in reversed(signs):
            node = self._made(Unary(token.start, node.end, _depth(node), token.text, node))
        return node

    def postfix(self) -> Node:
        return self._methods(self.primary())

    def primary(self) -> Node:
        token = self._take()
        if token.kind in ("int", "double"):
            return self._number(token, None)
        if token.kind == "string" or (token.kind == "word" and token.text != "in"):
            return self._made(Literal(token.start, token.end, 1, token.value))
        if token.kind == "name":
            return self._name_or_call(token)
        if token.kind == "op" and token.text == "(":
            node = self.ternary()
            self._expect(")", "close the parenthesis")
            self.in_parentheses.add(id(node))
            self.keep.append(node)
            return node
        if token.kind == "op" and token.text in "[{":
            self._fail(
                token, f"{self._quoted(token)} cannot stand here", "[…] stands only behind 'in'; there are no maps"
            )
        self._fail(token, f"expected a value, found {self._quoted(token)}")

    # parts ----------------------------------------------------------------------------------------------------------

    def _number(self, token: Token, minus: Token | None) -> Node:
        start = minus.start if minus else token.start
        value = token.value
        assert isinstance(value, int | float)
        value = -value if minus else value
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            text = self.source.text[start : token.end]
            self._note(
                start, token.end, "literal", f"{_short(text)} does not fit 64 bits", "write it as a double: with '.0'"
            )
            return self._made(Bad(start, token.end, 1))
        return self._made(Literal(start, token.end, 1, value))

    def _name_or_call(self, first: Token) -> Node:
        parts, last = [first], first
        while self._at(".") and self.tokens[self.pos + 1].kind == "name":
            self._take()
            last = self._take()
            parts.append(last)
        if not self._at("("):
            return self._made(Name(first.start, last.end, 1, ".".join(part.text for part in parts)))
        whole = ".".join(part.text for part in parts)
        if whole not in FUNCTIONS and len(parts) > 1 and (last.text in METHODS or first.text != "math"):
            receiver = Name(first.start, parts[-2].end, 1, ".".join(part.text for part in parts[:-1]))
            return self._call(last, last.text, first.start, [self._made(receiver)])
        return self._call(first, whole, first.start, [], name_end=last.end)

    def _methods(self, node: Node) -> Node:
        while self._at("."):
            self._take()
            token = self._take()
            if token.kind != "name":
                self._fail(token, f"expected a name behind '.', found {self._quoted(token)}")
            if not self._at("("):
                self._fail(
                    token, f"'.{token.text}' is not a call, and a value has no fields", f"call it: .{token.text}(…)"
                )
            node = self._call(token, token.text, node.start, [node])
        return node

    def _call(self, name_token: Token, name: str, start: int, args: list[Node], name_end: int = 0) -> Node:
        is_method = bool(args)
        self._take()
        if not self._at(")"):
            args.append(self.ternary())
            while self._at(","):
                self._take()
                args.append(self.ternary())
        closing = self._expect(")", f"close the call of {name}(…)")
        if name == "if" and len(args) == 3:
            return self._made(Ternary(start, closing.end, _depth(*args), args[0], args[1], args[2], is_call=True))
        if name in MACROS:
            return self._macro(name_token, name, start, closing.end, args, is_method)
        span = (name_token.start, name_end or name_token.end)
        return self._made(Call(start, closing.end, _depth(*args), name, *span, tuple(args), is_method))

    def _macro(self, token: Token, name: str, start: int, end: int, args: list[Node], is_method: bool) -> Node:
        variable = args[1] if len(args) == 3 and is_method else None
        if not isinstance(variable, Name) or "." in variable.name:
            message = f"{name} takes a variable and a condition for it"
            self._note(token.start, token.end, "syntax", message, f"write it as tags.{name}(t, t == 'vip')")
            return self._made(Bad(start, end, 1))
        return self._made(Macro(start, end, _depth(*args), name, args[0], variable.name, args[2]))

    def _in(self, item: Node) -> Node:
        if not self._at("["):
            target = self.coalesce()
            return self._made(InList(item.start, target.end, _depth(item, target), item, target))
        self._take()
        options: list[Node] = []
        while not self._at("]"):
            options.append(self.unary())
            if not self._at(","):
                break
            self._take()
        closing = self._expect("]", "close the list")
        return self._made(In(item.start, closing.end, _depth(item, *options), item, tuple(options)))

    def _binary(self, token: Token, left: Node, right: Node) -> Node:
        return self._made(Binary(left.start, right.end, _depth(left, right), token.text, left, right))

    # tokens, limits, mistakes ---------------------------------------------------------------------------------------

    @property
    def now(self) -> Token:
        return self.tokens[self.pos]

    def _at(self, op: str) -> bool:
        return self.now.kind == "op" and self.now.text == op

    def _take(self) -> Token:
        token = self.now
        self.pos = min(self.pos + 1, len(self.tokens) - 1)
        return token

    def _expect(self, op: str, hint: str) -> Token:
        if not self._at(op):
            self._fail(self.now, f"expected '{op}', found {self._quoted(self.now)}", hint)
        return self._take()

    def _made(self, node: Node) -> Node:
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            hint = "split it into several named expressions"
            self._stop(node.start, node.end, "limit", f"the expression has more than {MAX_NODES} parts", hint)
        if node.depth > MAX_DEPTH:
            self._too_deep(node.start)
        return node

    def _too_deep(self, start: int) -> NoReturn:
        hint = "split it into several named expressions"
        self._stop(start, start + 1, "limit", f"the expression is nested more than {MAX_DEPTH} deep", hint)

    def _fail(self, token: Token, message: str, hint: str = "") -> NoReturn:
        self._stop(token.start, max(token.end, token.start + 1), "syntax", message, hint)

    def _stop(self, start: int, end: int, kind: str, message: str, hint: str) -> NoReturn:
        self._note(start, end, kind, message, hint)
        raise Stop

    def _note(self, start: int, end: int, kind: str, message: str, hint: str = "") -> None:
        self.mistakes.append(mistake_at(self.source, start, end, kind, message, hint))

    @staticmethod
    def _quoted(token: Token) -> str:
        return "the end" if token.kind == "end" else f"'{_short(token.text)}'"

    def _stray_hint(self, token: Token) -> str:
        if token.kind in ("name", "string", "int", "double", "word"):
            return "an operator is missing before it"
        return "there is no '(' for it" if token.text == ")" else ""


def _depth(*nodes: Node) -> int:
    return 1 + max((node.depth for node in nodes), default=0)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
