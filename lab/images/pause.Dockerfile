# Holds a pod's namespaces open. The build context is the folder with the compiled program.
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
LABEL org.opencontainers.image.title="pause"
