# Debian's Prometheus. Its configuration is mounted; its data is worth no more than the pod.
# Required: the laboratory's, of Debian's packages of the day. Those of bases.json are pinned, for releases; this image is
# in none.
ARG BASE
FROM ${BASE}
USER 65532:65532
WORKDIR /tmp
EXPOSE 9090
ENTRYPOINT ["/usr/bin/prometheus"]
LABEL org.opencontainers.image.title="prometheus"
