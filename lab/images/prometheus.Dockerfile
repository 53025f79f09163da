# Debian's Prometheus. Its configuration is mounted; its data is worth no more than the pod.
# Required: the laboratory's, whose packages are pinned.
ARG BASE
FROM ${BASE}
USER 65532:65532
WORKDIR /tmp
EXPOSE 9090
ENTRYPOINT ["/usr/bin/prometheus"]
LABEL org.opencontainers.image.title="prometheus"
