"""How new pods get their mode and the contract."""

from precision_operator.reasons.row import ATTENTION, NORMAL, READ_LOG, WAITING

_INSTALL_ADMISSION = (
    "ask the cluster's admin to upgrade the chart, or to apply manifests/admission",
    "see what is installed: `!kubectl get mutatingadmissionpolicies,validatingadmissionpolicies`",
    "by webhook: `!kubectl get mutatingwebhookconfigurations`, and the operator's log",
)
_BY_HAND = "declare the contract by hand and take the label off (docs/onboarding.md)"

NOT_CHECKED = (WAITING, "no API server was asked yet whether it gives new pods their mode")
NOT_ENFORCING = (
    ATTENTION,
    "an API server does not give new pods the mode that is assigned to their workload",
    *_INSTALL_ADMISSION,
    "in kube-system and in the operator's own namespace nothing is enforced: keep the workloads and their policy "
    "in another one",
)
ADMISSION_NOT_INSTALLED = (ATTENTION, "an admission policy of the operator is missing", *_INSTALL_ADMISSION)
ADMISSION_DIFFERS = (
    ATTENTION,
    "an installed admission policy is not the one that this operator was shipped with",
    *_INSTALL_ADMISSION,
)
ADMISSION_NOT_CONFIRMED = (
    ATTENTION,
    "it could not be confirmed that every API server knows the newest assignment; no pod is deleted before that",
    "see whether the operator reaches each API server: its log, `!kubectl get endpointslices --all-namespaces "
    "--field-selector=metadata.name=kubernetes`",
)
ADMISSION_BEHIND = (
    WAITING,
    "an API server, or a replica of the webhook, does not know the newest assignment yet; it is asked again",
)
WEBHOOK_UNREACHABLE = (
    ATTENTION,
    "a replica of the operator's webhook cannot be asked which assignment it knows; no pod is deleted before that",
    "see whether the operator's pods run and are ready, and whether they reach each other on the webhook's port",
    "a replica that is gone leaves the endpoints of the webhook's Service by itself",
)
UNFENCED = (
    ATTENTION,
    "the admission policy that limits the operator's own writes is missing: it requests no mode and deletes no pod",
    *_INSTALL_ADMISSION,
)
TEMPLATE_STARTS_MIXED = (
    ATTENTION,
    "templates of these workloads start new pods in a mixed mode; while admission works, the assigned mode replaces it",
    "take ENABLE_FP16_TRAINING out of the templates, or set it to false: a pod that admission does not see then "
    "starts in FP32",
)
NOT_REWOUND = (
    ATTENTION,
    "they were rolled back for losses that were not finite or diverged, and did not go back to a healthy checkpoint",
    "see in the trainers' logs and dashboards whether their losses are finite again",
    "if they are not, start them from a checkpoint that was saved before the incident",
)
PODS_IN_WRONG_MODE = (
    ATTENTION,
    "replaced pods came back in another mode than the assigned one, twice: they are not deleted again",
    "compare what is assigned with what they report: `!get {name}`",
    "see whether another webhook, or the template, sets ENABLE_FP16_TRAINING after admission",
)
FORBIDDEN = (
    ATTENTION,
    "the API server refuses a write of the operator: its role, or an admission policy, forbids it",
    "see which: `!status {name}`; then upgrade the chart, or ask the cluster's admin",
)
LABELS_DISAGREE = (
    ATTENTION,
    "a workload's own labels and its template's answer the selector differently; the template's count",
    "give both the same labels",
)
UNSUPPORTED_KIND = (
    ATTENTION,
    "spec.selector matches pods whose controller is of no supported kind (docs/reference/kinds.md): their new pods get "
    "the assigned mode, and running ones are left alone",
    "see who owns them: `!kubectl get pods {of} "
    "-o custom-columns=POD:.metadata.name,KIND:.metadata.ownerReferences[*].kind,"
    "OWNER:.metadata.ownerReferences[*].name`",
    "restart them as their own controller wants it, to bring them into the assigned mode; or narrow spec.selector",
)
CONTAINER_ABSENT = (
    ATTENTION,
    "spec.containers has none of the name that the label precision.genesis.ai/inject says; init containers do not count",
    "set the label in the pod template to the name of the trainer's container",
)
STATIC_POD = (
    ATTENTION,
    "the pod is the mirror of a static pod, which runs as its node's file says",
    "declare the contract by hand in the node's file, or run the trainer from a Deployment",
)
WINDOWS = (ATTENTION, "spec.os.name is windows, and the trainer runs on Linux", "take the label off")
HOST_NETWORK = (
    ATTENTION,
    "with spec.hostNetwork the metrics port would be taken on the node, and two trainers cannot share one",
    f"take spec.hostNetwork away, or {_BY_HAND}",
)
TOO_LARGE = (
    ATTENTION,
    "the pod has more than 100 containers, or more than 1,000 env entries, ports, mounts and volumes together",
    _BY_HAND,
)
REQUEST_FILE_ELSEWHERE = (
    ATTENTION,
    "PRECISION_REQUEST_FILE of the container is not /etc/precision/request",
    f"remove the variable, or {_BY_HAND}",
)
MOUNT_PATH_TAKEN = (
    ATTENTION,
    "the container mounts another volume or a device at, above or below /etc/precision",
    f"mount it elsewhere, or {_BY_HAND} with another path in PRECISION_REQUEST_FILE",
)
VOLUME_NAME_TAKEN = (
    ATTENTION,
    "the pod has another volume with the name precision",
    f"rename that volume, or {_BY_HAND} with another volume name",
)
PORT_TAKEN = (
    ATTENTION,
    "another container of the pod has TCP port 9400",
    f"give that container another port, or {_BY_HAND} with another --metrics-port",
)
PORT_NAME_TAKEN = (
    ATTENTION,
    "another port of the pod has the name metrics",
    f"rename that port, or {_BY_HAND} with another port name",
)
ENFORCING = (NORMAL, "every API server gives new pods the mode of their workload")
TEMPLATES_START_IN_FP32 = (NORMAL, "new pods start in FP32 also where admission does not see them")
TEMPLATE_READS_REFERENCE = (
    ATTENTION,
    "a ConfigMap or a Secret decides what new pods start in where admission does not see them",
    "write ENABLE_FP16_TRAINING into the template itself, so that its start does not depend on another object",
)
CERTIFICATE_INVALID = (
    ATTENTION,
    "the webhook's certificate cannot be used",
    "delete the Secret that the message names: a new one is made; with cert-manager, look at its Certificate",
)
CERTIFICATES_ROTATED = (NORMAL, "the webhook has a new certificate")
FENCED = (NORMAL, "the API server denies the operator every write that it does not need")
ADMISSION_MODE_CHOSEN = (NORMAL, "how new pods are given their mode was chosen")
REVIEW_FAILED = (ATTENTION, "the webhook could not judge a pod, which passes unchanged", READ_LOG)
