"""An admission policy of the rendered chart, evaluated as the API server does, where a CEL interpreter is installed."""

from __future__ import annotations

from typing import Any

import pytest

Thing = dict[str, Any]


class Judge:
    """Evaluates a policy as the API server does: conditions, variables in their order, validations."""

    def __init__(self, policy: Thing) -> None:
        self._celpy = pytest.importorskip("celpy", reason="cel-python is not installed")
        self.policy = policy
        self._spec = policy["spec"]
        self._environment = self._celpy.Environment()
        self._programs: dict[str, Any] = {}  # to compile one takes longer than all else

    def complaints(self, thing: Thing, old: Thing | None = None, below: str = "", **known: Any) -> list[str] | None:
        """Messages of what it refuses; None when the policy is not about the object.

        Args:
            thing: what it would be.
            old: what it was, of an update.
            below: the subresource that is written.
            known: variables that only an API server can work out.
        """
        scope = self._scope(thing, old, below)
        if not self._matches(scope):
            return None
        return self._messages(scope, known)

    def of_request(self, operation: str, user: str, new: Thing | None, old: Thing | None, *groups: str) -> list[str]:
        """Messages of what it refuses of a user's request, as the API server makes them."""
        info = {"username": user, **({"groups": list(groups)} if groups else {})}
        named = {"object": new, "oldObject": old, "request": {"operation": operation, "userInfo": info}}
        scope = {name: self._celpy.json_to_cel(value) for name, value in named.items()}
        return self._messages(scope, {}) if self._matches(scope) else []

    def _matches(self, scope: dict[str, Any]) -> bool:
        return all(self._value(condition["expression"], scope) for condition in self._spec.get("matchConditions", ()))

    def _messages(self, scope: dict[str, Any], known: dict[str, Any]) -> list[str]:
        variables = self._celpy.celtypes.MapType()
        for validation in self._spec.get("variables", []):
            name = self._celpy.celtypes.StringType(validation["name"])
            if validation["name"] in known:
                variables[name] = self._celpy.json_to_cel(known[validation["name"]])
            else:
                variables[name] = self._value(validation["expression"], {**scope, "variables": variables})
        scope["variables"] = variables
        refused = [
            validation for validation in self._spec["validations"] if not self._value(validation["expression"], scope)
        ]
        expressions = [validation.get("messageExpression") for validation in refused]
        return [
            str(self._value(said, scope)) if said else validation["message"]
            for validation, said in zip(refused, expressions, strict=True)
        ]

    def about(self, thing: Thing) -> bool:
        """Whether the policy is about an object that is made."""
        return self._matches(self._scope(thing))

    def _scope(self, thing: Thing, old: Thing | None = None, below: str = "") -> dict[str, Any]:
        name = thing["metadata"].get("name", "")
        # What is empty is not there, and asking for it is an error, which refuses.
        request = {"operation": "UPDATE" if old else "CREATE", **({"subResource": below} if below else {}), "name": name}
        request["namespace"] = thing["metadata"].get("namespace", "control")
        named = {"object": thing, "oldObject": old, "request": request}
        return {name: self._celpy.json_to_cel(value) for name, value in named.items()}

    def _value(self, expression: str, scope: dict[str, Any]) -> Any:
        if expression not in self._programs:
            self._programs[expression] = self._environment.program(self._environment.compile(expression))
        return self._programs[expression].evaluate(scope)
