# The collector and its pages, on SQLite in /data, or on PostgreSQL with --db: see docker-compose.yml and docs/how-to/containers.md.
# Say how it is reached, for links in messages: docker run -e GRADCANARY_PUBLIC_URL=http://HOST:8787 ...
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY agent agent
COPY server server
COPY dashboard dashboard
COPY migrations migrations
COPY docs/knowledge docs/knowledge
COPY docs/runbooks docs/runbooks
# No torch: that is the trainings'. No pip in what is shipped.
RUN python -m venv --without-pip /opt/gradcanary \
 && pip --python /opt/gradcanary/bin/python install --no-cache-dir '.[server,dashboard,postgres,notify,mcp]'

FROM python:3.11-slim
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin gradcanary \
 && install --directory --owner=gradcanary --group=gradcanary --mode=0700 /data
COPY --from=build /opt/gradcanary /opt/gradcanary
ENV PATH=/opt/gradcanary/bin:$PATH PYTHONUNBUFFERED=1
# Keep freed memory, 32 MiB in each of four arenas: heatmaps take some megabytes each (docs/results/performance.md).
ENV MALLOC_ARENA_MAX=4 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=33554432
USER 10001
VOLUME /data
# Another port is said to Docker, -p 9000:8787: what is in here asks this one.
EXPOSE 8787
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --start-interval=1s \
  CMD ["python", "-m", "gradcanary_server.ops.healthcheck", "8787"]
ENTRYPOINT ["gradcanary"]
CMD ["up", "--host", "0.0.0.0", "--data", "/data"]
