"""A client of the admin API."""

from __future__ import annotations

import httpx

__all__ = ["Admin"]


class Admin:
    """A session on the admin API. Methods raise ``httpx.HTTPStatusError`` with the response body on errors."""

    def __init__(self, url: str, name: str, password: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=20)
        self.post("/login", name=name, password=password)

    def request(self, method: str, path: str, **arguments) -> httpx.Response:
        """Sends a request and returns the successful response."""
        response = self.http.request(method, path, **arguments)
        if response.is_error:
            raise httpx.HTTPStatusError(
                f"{method} {path}: {response.status_code} {response.text}", request=response.request, response=response
            )
        return response

    def get(self, path: str, **query):
        """GET; returns the JSON of the response."""
        return self.request("GET", path, params=query).json()

    def post(self, path: str, **body):
        """POST of a JSON object; returns the JSON of the response, or None."""
        response = self.request("POST", path, json=body)
        return response.json() if response.content else None

    def put(self, path: str, **body) -> None:
        """PUT of a JSON object."""
        self.request("PUT", path, json=body)

    def patch(self, path: str, **body) -> None:
        """PATCH with a JSON object."""
        self.request("PATCH", path, json=body)

    def model(self, name: str, *api_bases: str, upstream_model: str | None = None, key: str | None = None) -> int:
        """Creates a model with a backend at each address; returns its ID."""
        model = self.post("/admin/models", name=name)["id"]
        for api_base in api_bases:
            backend = {"api_base": api_base}
            if upstream_model:
                backend["upstream_model"] = upstream_model
            if key:
                backend["upstream_api_key"] = key
            self.post(f"/admin/models/{model}/backends", **backend)
        return model

    def principal(self, name: str, *grants: str) -> int:
        """Creates a service account with a role that grants the named models; returns its ID."""
        principal = self.post("/admin/principals", name=name)["id"]
        role = f"{name}-models"
        self.post("/admin/roles", name=role)
        for model in grants:
            self.post(f"/admin/roles/{role}/permissions", verb="model:invoke", resource=f"model/{model}")
        self.post(f"/admin/principals/{principal}/roles", role=role)
        return principal

    def key(self, principal: int, name: str = "key") -> str:
        """Creates a key and returns its text, which the API shows only once."""
        return self.post("/admin/keys", name=name, principal_id=principal)["key"]

    def usage(self, **query) -> list[dict]:
        """The usage events, newest first."""
        return self.get("/admin/usage/events", **query)
