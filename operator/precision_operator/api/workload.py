"""The key of a workload: ``<apiGroup>/<Kind>/<name>``, for example ``apps/Deployment/vit-a``."""


def name_of(key: str) -> str:
    """The name in a key."""
    return key.rpartition("/")[2]


def kind_of(key: str) -> str:
    """What stands before the name: ``apps/Deployment``."""
    return key.rpartition("/")[0]
