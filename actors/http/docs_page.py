"""The OpenAPI document as a page for people: no scripts and nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["docs_page"]

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:13px/1.4 ui-monospace,monospace}summary{cursor:pointer;padding:.2rem 0}"
    "b{display:inline-block;min-width:4.5rem}pre,table{margin:.3rem 0 1rem 4.5rem}"
    "td{padding:0 .8rem 0 0;vertical-align:top}"
)


def docs_page(document: dict[str, Any]) -> str:
    """Return the HTML page of an OpenAPI document: every operation, with the fields that it takes."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    schemas = document["components"]["schemas"]
    operations = [
        _operation(path, method, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><p>The same for programs: <a href=openapi.json><code>/openapi.json</code></a></p>"
        f"{''.join(operations)}</html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    head = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return f"<details><summary>{head}</summary>{_fields(content.get('schema', {}), schemas)}</details>"


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return a table of a body's fields, or nothing if there are none."""
    named = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    required = named.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(field))}<td>{'required' * (name in required)}"
        for name, field in named.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _kind(field: dict[str, Any]) -> str:
    """Return the type of a field in a few words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_kind(one) for one in field["anyOf"] if one.get("type") != "null"))
    if "enum" in field:
        return " or ".join(map(repr, field["enum"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if field.get("type") == "array":
        return f"array of {_kind(field.get('items') or {})}"
    return str(field.get("type", "anything"))
