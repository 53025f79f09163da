"""The key of a workload: ``<apiGroup>/<Kind>/<name>``, for example ``apps/Deployment/vit-a``."""


def name_of(key: str) -> str:
    """The name in a key."""
    return key.rpartition("/")[2]


def shown(key: str) -> str:
    """Kind and name for a person, as kubectl takes them: ``deployment/vit-a``. One name may stand for two kinds."""
    kind = name_of(kind_of(key)).lower()
    return f"{kind}/{name_of(key)}" if kind else name_of(key)


def kind_of(key: str) -> str:
    """What stands before the name: ``apps/Deployment``."""
    return key.rpartition("/")[0]
