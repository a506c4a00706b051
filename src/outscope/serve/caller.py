"""Who calls: the key of a request, and what it allows."""

from __future__ import annotations

from fastapi import Request

from outscope.serve.keys import Keys
from outscope.serve.problems import Problem

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="outscope"'}


class Callers:
    """Checks keys: `Authorization: Bearer KEY` or `X-API-Key: KEY`."""

    def __init__(self, keys: Keys, *, open_admin: bool) -> None:
        self._keys, self._open_admin = keys, open_admin

    async def user(self, request: Request) -> None:
        """Let a caller pass who may score, or refuse."""
        if self._keys.needed:
            self._note(request, self._keys.user(self._given(request)))

    async def admin(self, request: Request) -> None:
        """Let a caller pass who may change models, or refuse."""
        if self._open_admin:
            return
        if not self._keys.admins:
            raise Problem(
                403,
                "no-admin",
                "changes are off, because this service has no admin key; start it with "
                "$OUTSCOPE_ADMIN_KEY or with an admin line in the --keys file",
            )
        key = self._given(request)
        if self._keys.admin(key) is None and self._keys.user(key) is not None:
            raise Problem(403, "needs-admin", "this key may score; changes need an admin key")
        self._note(request, self._keys.admin(key))

    @staticmethod
    def _given(request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and key.strip():
            return key.strip()
        key = request.headers.get("x-api-key", "").strip()
        if key:
            return key
        raise Problem(
            401,
            "no-key",
            "a key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
            headers=_CHALLENGE,
        )

    @staticmethod
    def _note(request: Request, name: str | None) -> None:
        if name is None:
            raise Problem(401, "wrong-key", "this key is not known here", headers=_CHALLENGE)
        request.state.facts["caller"] = name
