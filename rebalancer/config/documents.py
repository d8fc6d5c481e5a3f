"""Raw YAML documents, from files or from the hub, with the line of each field."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rebalancer.errors import ConfigError

MAX_FILE_BYTES = 8 * 1024 * 1024
MERGE = "tag:yaml.org,2002:merge"
MAX_FIELDS, MAX_DEPTH = 200_000, 60
"""Per document; aliases can make a small file endless."""


@dataclass(frozen=True)
class Document:
    """One raw document with the lines of its fields.

    Attributes:
        where: file name or `hub`.
        data: the parsed mapping.
        lines: path of a field -> line, from 1; empty for documents of the hub.
    """

    where: str
    data: dict[str, Any]
    lines: Mapping[tuple[str | int, ...], int] = field(default_factory=dict)

    def at(self, path: tuple[str | int, ...]) -> str:
        """Returns `file:line` of a field, or of its nearest parent that has a line."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return f"{self.where}:{self.lines[path[:end]]}"
        return self.where


def _build(
    node: yaml.Node | None,
    path: tuple[str | int, ...],
    lines: dict[tuple[str | int, ...], int],
    loader: yaml.SafeLoader,
) -> Any:
    """Turns a YAML node into data and notes the line of each field."""
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if len(lines) > MAX_FIELDS or len(path) > MAX_DEPTH:
        raise yaml.constructor.ConstructorError(None, None, "too many or too deep fields (aliases?)", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        result: dict[Hashable, Any] = {}
        _no_field_twice(node, loader)
        loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = _build(value_node, (*path, key), lines, loader)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, i), lines, loader) for i, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def _no_field_twice(node: yaml.MappingNode, loader: yaml.SafeLoader) -> None:
    """Refuses a field that stands twice; one that overrides a merged one (`<<`) is meant.

    Raises:
        ConstructorError: with the line.
    """
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a field's name must be a word", key_node.start_mark)
        if key_node.tag == MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"field {key!r} stands twice", key_node.start_mark)
        seen.add(key)


def parse(text: str, where: str) -> list[Document]:
    """Parses YAML documents.

    Raises:
        ConfigError: the text is no YAML, or a document is no mapping.
    """
    documents: list[Document] = []
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            lines: dict[tuple[str | int, ...], int] = {}
            data = _build(node, (), lines, loader)
            if data is None:
                continue
            if not isinstance(data, dict):
                raise ConfigError(
                    [
                        f"{where}:{lines[()]}: a document must be a mapping with apiVersion, kind, metadata "
                        f"and spec, but is a {type(data).__name__}"
                    ]
                )
            documents.append(Document(where, data, lines))
    # PyYAML meets a tag with nonsense behind it (`!!float ""`, `!!bool x`, `!!timestamp x`) with the last two.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None) or (loader and loader.get_mark())
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError([f"{where}{line}: not valid YAML: {problem}; check indentation and quotes there"]) from None
    except RecursionError:
        raise ConfigError([f"{where}: nested too deeply to be read; write the fields of the kinds only"]) from None
    finally:
        if loader is not None:
            loader.dispose()
    return documents


def read_files(paths: Iterable[Path]) -> list[Document]:
    """Reads YAML files; a folder stands for its *.yaml and *.yml files in order of name.

    Raises:
        ConfigError: a path can't be read or holds no YAML.
    """
    documents: list[Document] = []
    problems: list[str] = []
    for path in paths:
        try:
            files = sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml")) if path.is_dir() else [path]
        except OSError as error:
            problems.append(f"{path}: can't be read: {error.strerror}; check its permissions")
            continue
        if not files:
            problems.append(f"{path}: the folder holds no *.yaml file; put the policies there or name another path")
        for file in files:
            try:
                if file.exists() and not file.is_file():
                    problems.append(f"{file}: is no regular file; write the documents to a file")
                    continue
                if file.stat().st_size > MAX_FILE_BYTES:
                    problems.append(f"{file}: larger than {MAX_FILE_BYTES} bytes; split it")
                    continue
                documents += parse(file.read_text(encoding="utf-8"), str(file))
            except ConfigError as error:
                problems += error.problems
            except UnicodeDecodeError as error:
                problems.append(f"{file}: is not UTF-8 (byte {error.start}); save it as UTF-8")
            except OSError as error:
                problems.append(f"{file}: can't be read: {error.strerror}; check the path and its permissions")
    if problems:
        raise ConfigError(problems)
    return documents


def from_hub(raw: Iterable[dict[str, Any]]) -> list[Document]:
    """Wraps custom resources of the hub as documents; their file is `hub` with kind and name."""
    return [
        Document(
            f"hub {d.get('kind')} {d.get('metadata', {}).get('namespace', '')}/{d.get('metadata', {}).get('name')}", d
        )
        for d in raw
    ]
