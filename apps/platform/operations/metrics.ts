import { Counter, Gauge, type Registry } from 'prom-client';
import type { BodyRecorder } from '#libs/request-log/bodies/body-recorder.ts';
import { closedLagSeconds } from '#libs/event-log/read-events.ts';
import { loopStates } from '#libs/kernel/background-loop.ts';
import { version } from '#libs/kernel/version.ts';
import type { Platform } from '../platform.ts';
import { databaseRead, registerDatabaseMetrics } from './database-metrics.ts';

/**
 * Registers the metrics of the parts that both processes have; they are read when Prometheus asks. A metric from the
 * database has its last known value while the database does not answer, and is absent before its first answer, so that
 * /metrics always answers within little more than a second.
 */
export function registerPlatformMetrics(registry: Registry, platform: Platform): void {
  const registrar = createRegistrar(registry);
  const { labelled, registers } = registrar;
  const buildInfo = new Gauge({
    name: 'sluice_build_info',
    help: 'Always 1; the label contains the release of this process.',
    labelNames: ['version'],
    registers,
  });
  buildInfo.set({ version }, 1);
  platform.callMetrics.registerIn(registry);
  labelled(
    'sluice_background_loop_failing',
    '1 if the last run with work of a background loop of this process failed; it is retried.',
    'loop',
    () => Object.fromEntries(loopStates().map(({ name, isFailing }) => [name, Number(isFailing)])),
  );
  labelled(
    'sluice_background_loop_success_age_seconds',
    'Seconds since a background loop of this process last ended a run without a failure.',
    'loop',
    () => Object.fromEntries(loopStates().map(({ name, successAgeSeconds }) => [name, successAgeSeconds])),
  );
  registerCallMetrics(registrar, platform);
  registerRecordMetrics(registrar, platform);
  registerMemoryMetrics(registrar, platform);
  registerTrafficMetrics(registrar, platform);
  registerQueueMetrics(registrar, platform);
}

function registerCallMetrics(
  { gauge, counter, labelledCounter }: Registrar,
  { calls, egress, secretCache }: Platform,
): void {
  gauge(
    'sluice_forwarding_open_calls',
    'Number of calls to providers in flight in this process.',
    () => calls.counters().openCalls,
  );
  gauge(
    'sluice_forwarding_open_streams',
    'Number of streamed calls to providers in flight in this process.',
    () => calls.counters().openStreams,
  );
  gauge(
    'sluice_forwarding_waiting_retries',
    'Number of calls in this process that wait for their next attempt.',
    () => calls.counters().waitingRetries,
  );
  gauge(
    'sluice_egress_sockets',
    'Number of open connections from this process to providers.',
    () => egress.stats().sockets,
  );
  counter(
    'sluice_egress_destinations_refused_total',
    'Connections that this process rejected because their address is not allowed (SLUICE_EGRESS_ALLOW).',
    () => egress.stats().destinationsRefused,
  );
  gauge(
    'sluice_egress_origins',
    'Number of provider origins (scheme, host and port) to which this process has open connections.',
    () => egress.stats().origins,
  );
  counter(
    'sluice_egress_calls_refused_total',
    'Calls that this process rejected because their workspace used its share of SLUICE_CONNECTIONS.',
    () => egress.stats().callsRefused,
  );
  counter(
    'sluice_egress_calls_resent_total',
    'Calls that this process sent again because the provider had closed the idle connection.',
    () => egress.stats().callsResent,
  );
  labelledCounter(
    'sluice_secret_fetches_total',
    'Fetches by this process from secret managers, by result (ok, unavailable, denied, not_found, malformed).',
    'result',
    () => secretCache.stats().fetches,
  );
  gauge(
    'sluice_secrets_cached',
    'Number of secret references whose secret is in the memory of this process.',
    () => secretCache.stats().cached,
  );
}

function registerRecordMetrics(
  { gauge, counter, labelledCounter }: Registrar,
  { requestLog, costs, limits }: Platform,
): void {
  gauge(
    'sluice_request_log_waiting_rows',
    'Number of request-log rows that this process has not yet written to the database.',
    () => requestLog.stats().waitingRows,
  );
  gauge(
    'sluice_request_log_kept_rows',
    'Number of request-log rows that wait in a file on disk because the database is unavailable.',
    () => requestLog.stats().rowsOnDisk,
  );
  counter(
    'sluice_request_log_lost_rows_total',
    'Request-log rows that this process could not write and lost.',
    () => requestLog.stats().lostRows,
  );
  labelledCounter(
    'sluice_unpriced_calls_total',
    'Calls of this process whose cost is unknown because their usage or the price of their model is unknown.',
    'provider',
    () => Object.fromEntries(costs.unpriced()),
  );
  for (const kind of ['budget', 'rate'] as const) {
    counter(
      `sluice_limits_${kind}_refusals_total`,
      `Calls that this process rejected or delayed because a ${kind} was used up.`,
      () => limits.refused()[kind],
    );
  }
  gauge(
    'sluice_limits_counters',
    'Number of counters of budgets and rates that calls of this process draw from.',
    () => limits.stats().counters,
  );
  gauge(
    'sluice_limits_waiting_calls',
    'Number of calls in this process that wait for the database to return the remainder of a budget or rate.',
    () => limits.stats().waiting,
  );
  counter('sluice_limits_alerts_total', 'Budget alerts that this process recorded.', () => limits.alerts());
}

function registerMemoryMetrics({ gauge, registers }: Registrar, platform: Platform): void {
  const { db, pool, memory } = platform;
  gauge(
    'sluice_memory_held_bytes',
    'Bytes of the memory budget in use for records, plans, bodies, parsed values, answers, lines and results in this process.',
    () => memory.stats().heldBytes,
  );
  gauge(
    'sluice_records_memory_bytes',
    'Bytes of the memory budget used by the records of all workspaces (configs, keys, prompts and others).',
    () => platform.access.snapshot.recordStats().bytes,
  );
  gauge(
    'sluice_workspaces_left_out',
    'Number of workspaces whose calls this process rejects because their records do not fit into its memory.',
    () => platform.access.snapshot.recordStats().workspacesLeftOut,
  );
  gauge(
    'sluice_records_unreadable',
    'Number of stored records that this process cannot read. Calls that need them are rejected.',
    () => platform.access.snapshot.recordStats().unreadable,
  );
  gauge(
    'sluice_memory_max_bytes',
    'Bytes of the memory budget of this process (SLUICE_MEMORY_MAX).',
    () => memory.stats().bytesMax,
  );
  gauge(
    'sluice_memory_waiting',
    'Number of answers and lines that wait for free memory in the budget of this process.',
    () => memory.stats().waiting,
  );
  gauge(
    'sluice_database_connections',
    'Number of open database connections in the pool of this process.',
    () => pool.totalCount,
  );
  gauge(
    'sluice_database_idle',
    'Number of idle database connections in the pool of this process.',
    () => pool.idleCount,
  );
  gauge(
    'sluice_database_waiting',
    'Number of queries and transactions in this process that wait for a database connection.',
    () => pool.waitingCount,
  );
  const lag = databaseRead(() => closedLagSeconds(db));
  gauge(
    'sluice_event_log_lag_seconds',
    'Age in seconds of the oldest event that subscribers cannot read yet because an older transaction is open.',
    lag,
  );
  registerDatabaseMetrics(registers, db);
}

function registerTrafficMetrics(
  { gauge, counter, labelledCounter, labelled }: Registrar,
  { traffic, responseCache }: Platform,
): void {
  gauge(
    'sluice_provider_paused',
    'Number of pairs of credential and model that this process does not call because of a rate limit of the provider.',
    () => traffic.stats().rateLimited,
  );
  labelled(
    'sluice_provider_queue',
    'Number of calls in this process: in flight at a provider, or waiting for a permit of their credential (live, background).',
    'what',
    () => {
      const { inFlight, waitingLive, waitingBackground } = traffic.stats();
      return { in_flight: inFlight, waiting_live: waitingLive, waiting_background: waitingBackground };
    },
  );
  gauge(
    'sluice_response_cache_memory_bytes',
    'Bytes of memory that the response cache of this process uses.',
    () => responseCache.stats().memoryBytes,
  );
  gauge(
    'sluice_response_cache_memory_entries',
    'Number of answers in the response cache of this process.',
    () => responseCache.stats().memoryEntries,
  );
  gauge(
    'sluice_response_cache_waiting_rows',
    'Number of answers that this process has not yet written to the response cache in the database.',
    () => responseCache.stats().waitingRows,
  );
  counter(
    'sluice_response_cache_dropped_rows_total',
    'Answers that this process could not write to the response cache in the database.',
    () => responseCache.stats().droppedRows,
  );
  labelledCounter(
    'sluice_response_cache_lookups_total',
    'Lookups in the response cache by this process, by result (hit, miss).',
    'result',
    () => {
      const { hits, misses } = responseCache.stats();
      return { hit: hits, miss: misses };
    },
  );
  // One series per provider. One per credential and model would have no bound; GET /v1/admin/circuits lists those.
}

function registerQueueMetrics({ registers }: Registrar, { queue, traffic }: Platform): void {
  const circuits: Gauge = new Gauge({
    name: 'sluice_provider_circuits',
    help: 'Number of circuits (one per credential, model and breaker config) in each state, as this process sees them.',
    labelNames: ['provider', 'state'],
    registers,
    collect() {
      circuits.reset();
      const now = Date.now();
      for (const { provider, circuit } of traffic.circuits.all()) circuits.inc({ provider, state: circuit.state(now) });
    },
  });
  const readDepths = databaseRead(() => queue.depths());
  const oldest: Gauge = new Gauge({
    name: 'sluice_queue_oldest_job_seconds',
    help: 'Seconds that the oldest ready job has waited for a worker, by queue; absent if no job is waiting.',
    labelNames: ['queue'],
    registers,
    async collect() {
      const depths = (await readDepths()) ?? [];
      oldest.reset();
      for (const { name, oldestReadySeconds: seconds } of depths)
        if (seconds !== null) oldest.set({ queue: name }, seconds);
    },
  });
  const jobs = new Gauge({
    name: 'sluice_queue_jobs',
    help: 'Number of jobs in each queue by state (ready, active, deferred), as counted by the last monitor pass.',
    labelNames: ['queue', 'state'],
    registers,
    async collect() {
      const depths = (await readDepths()) ?? [];
      jobs.reset();
      for (const depth of depths) {
        jobs.set({ queue: depth.name, state: 'ready' }, depth.readyCount);
        jobs.set({ queue: depth.name, state: 'active' }, depth.activeCount);
        jobs.set({ queue: depth.name, state: 'deferred' }, depth.deferredCount);
      }
    },
  });
}

type Registrar = ReturnType<typeof createRegistrar>;

/** Registers metrics that are read when Prometheus asks for them. */
function createRegistrar(registry: Registry) {
  const registers = [registry];

  /** For the counters of a part since the start of the process. */
  function counter(name: string, help: string, read: () => number): void {
    const made: Counter = new Counter({
      name,
      help,
      registers,
      collect() {
        made.reset();
        made.inc(read());
      },
    });
  }

  function labelledCounter(name: string, help: string, label: string, read: () => Record<string, number>): void {
    const made: Counter = new Counter({
      name,
      help,
      labelNames: [label],
      registers,
      collect() {
        made.reset();
        for (const [value, count] of Object.entries(read())) made.inc({ [label]: value }, count);
      },
    });
  }

  function labelled(name: string, help: string, label: string, read: () => Record<string, number>): void {
    const made: Gauge = new Gauge({
      name,
      help,
      labelNames: [label],
      registers,
      collect() {
        for (const [value, count] of Object.entries(read())) made.set({ [label]: value }, count);
      },
    });
  }

  function gauge(name: string, help: string, read: () => number | Promise<number | undefined>): void {
    const made: Gauge = new Gauge({
      name,
      help,
      registers,
      async collect() {
        const value = await read();
        if (value === undefined) made.reset();
        else made.set(value);
      },
    });
  }

  return { registers, counter, labelledCounter, labelled, gauge };
}

/** The metrics of the process that records bodies of calls. */
export function registerBodyMetrics(registry: Registry, bodies: Pick<BodyRecorder, 'stats'>): void {
  const what = { recorded: 'recorded', dropped: 'dropped because of limited space or time' } as const;
  for (const [name, text] of Object.entries(what)) {
    const made: Counter = new Counter({
      name: `sluice_recorded_bodies_${name}_total`,
      help: `Calls whose bodies this process has ${text}.`,
      registers: [registry],
      collect() {
        made.reset();
        made.inc(bodies.stats()[name as keyof typeof what]);
      },
    });
  }
}
