"""`HubOptions`: where a checkpoint is looked for besides its name."""

import os
import re
from dataclasses import dataclass, field
from types import ModuleType

from pellucid.config.checks import check_bool
from pellucid.errors import InputError
from pellucid.paths import path_of

_REVISION = re.compile(r"\w[\w./-]{0,254}")


def hub_client() -> ModuleType:
    """The package huggingface_hub, which is imported late."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # no telemetry: the hub is only asked for models
    import huggingface_hub.constants
    import huggingface_hub.errors

    return huggingface_hub


@dataclass(frozen=True)
class HubOptions:
    """How a checkpoint that is no path is looked for. Raises InputError for invalid values; its repr hides the token.

    revision: a branch, tag or commit on the hub.
    token: for private and gated models; by default HF_TOKEN or the stored one (True: there must be one; False: none).
    local_files_only: never use the network; what is in the cache is used without it in any case.
    cache_dir: another folder than the hub's own cache.
    """

    revision: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    local_files_only: bool = False
    cache_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_bool("local_files_only", self.local_files_only)
        object.__setattr__(self, "cache_dir", None if self.cache_dir is None else path_of(self.cache_dir))
        object.__setattr__(self, "token", _checked_token(self.token))

    def check_revision(self) -> None:
        """Refuses an invalid revision; called only where the hub is used, since a path has no revision."""
        revision = self.revision
        if revision is not None and not (
            isinstance(revision, str) and _REVISION.fullmatch(revision) and ".." not in revision
        ):
            raise InputError(f"revision is {str(revision)[:80]!r}, expected a branch, a tag or a commit")

    @property
    def offline(self) -> bool:
        """Whether the caller or the environment forbids network access."""
        return self.local_files_only or bool(hub_client().constants.HF_HUB_OFFLINE)

    def resolve_token(self) -> str | bool | None:
        """The token that the hub's client sends: the given one, or the one that it finds. Raises InputError for an
        invalid one."""
        if self.token is not None and self.token is not True:
            return self.token
        try:
            return _checked_token(hub_client().get_token())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the stored token of the hub cannot be read ({error}): run `hf auth login`") from error


def _checked_token(token: str | bool | None) -> str | bool | None:
    """The token, stripped of whitespace such as the line break at the end of a file."""
    if token is None or isinstance(token, bool):  # True: the stored one; False: none
        return token
    stripped = token.strip() if isinstance(token, str) else ""
    if not re.fullmatch("[!-~]+", stripped):
        raise InputError(
            "the token, given, stored or in HF_TOKEN, is not a token of the hub: expected one word such as hf_abc"
        )
    return stripped


DEFAULT_OPTIONS = HubOptions()
"""The newest version on the hub, or of the hub's own cache."""
