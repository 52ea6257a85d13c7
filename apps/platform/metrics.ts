import { Gauge, type Registry } from 'prom-client';
import { closedLagSeconds } from '#libs/event-log/read-events.ts';
import { createBoundedRead } from './bounded-read.ts';
import type { Platform } from './compose.ts';

/**
 * The state of what both processes are made of, read when Prometheus asks. Values of the database are those of the last
 * time that it answered, and absent before the first; /metrics itself always answers, within little more than a second.
 */
export function registerPlatformMetrics(registry: Registry, platform: Platform): void {
  const { db, queue, forwarder, egress, requestLog, pool, traffic, responseCache, memory } = platform;
  const registers = [registry];
  gauge('sluice_forwarding_open_calls', 'Calls to providers under way.', () => forwarder.counters().openCalls);
  gauge('sluice_forwarding_open_streams', 'Of these, streams.', () => forwarder.counters().openStreams);
  gauge(
    'sluice_forwarding_waiting_retries',
    'Calls that wait for their next attempt.',
    () => forwarder.counters().waitingRetries,
  );
  gauge('sluice_egress_sockets', 'Open connections to providers.', () => egress.stats().sockets);
  gauge(
    'sluice_egress_destinations_refused',
    'Connections refused because of their address, since the start.',
    () => egress.stats().destinationsRefused,
  );
  gauge('sluice_egress_origins', 'Origins of providers with an open connection.', () => egress.stats().origins);
  gauge(
    'sluice_egress_calls_refused',
    'Calls beyond the share of connections of their workspace, since the start.',
    () => egress.stats().callsRefused,
  );
  gauge(
    'sluice_egress_calls_resent',
    'Calls sent once more because the provider had closed their idle connection, since the start.',
    () => egress.stats().callsResent,
  );
  gauge(
    'sluice_request_log_waiting_rows',
    'Rows of the request log that are not in the database.',
    () => requestLog.stats().waitingRows,
  );
  gauge('sluice_request_log_kept_rows', 'Of those, the rows that wait on the disk.', () => requestLog.stats().keptRows);
  gauge(
    'sluice_request_log_lost_rows',
    'Rows of the request log that were given up, since the start.',
    () => requestLog.stats().lostRows,
  );
  gauge(
    'sluice_memory_held_bytes',
    'What bodies, parsed values, answers, lines and results under way are counted as.',
    () => memory.stats().heldBytes,
  );
  gauge('sluice_memory_max_bytes', 'What they may take together.', () => memory.stats().bytesMax);
  gauge('sluice_memory_waiting', 'Answers and lines that wait for memory.', () => memory.stats().waiting);
  gauge('sluice_database_connections', 'Connections of the pool.', () => pool.totalCount);
  gauge('sluice_database_waiting', 'Callers that wait for a connection of the pool.', () => pool.waitingCount);
  const lag = databaseRead(() => closedLagSeconds(db));
  gauge('sluice_event_log_lag_seconds', 'Age of the oldest event that subscribers cannot read yet.', lag);
  gauge(
    'sluice_provider_paused',
    'Credentials and models that a provider asked not to call for a while.',
    () => traffic.stats().paused,
  );
  labelled(
    'sluice_provider_queue',
    'Calls with a place at their provider, and calls that wait for one.',
    'what',
    () => {
      const { inFlight, waitingLive, waitingBackground } = traffic.stats();
      return { in_flight: inFlight, waiting_live: waitingLive, waiting_background: waitingBackground };
    },
  );
  labelled('sluice_response_cache', 'The response cache of this process, since the start.', 'what', () => {
    const { hits, misses, memoryBytes, memoryEntries, waitingRows, droppedRows } = responseCache.stats();
    return {
      hits,
      misses,
      memory_bytes: memoryBytes,
      memory_entries: memoryEntries,
      waiting_rows: waitingRows,
      dropped_rows: droppedRows,
    };
  });
  // Providers are few; a series for each key and model would be as many as callers care to name. GET /v1/admin/circuits
  // names them.
  const circuits: Gauge = new Gauge({
    name: 'gateway_provider_circuit_state',
    help: 'Circuit breakers of credentials and models by state, as this process sees them.',
    labelNames: ['provider', 'state'],
    registers,
    collect() {
      circuits.reset();
      const now = Date.now();
      for (const { provider, circuit } of traffic.circuits.all()) circuits.inc({ provider, state: circuit.state(now) });
    },
  });
  const readDepths = databaseRead(() => queue.depths());
  const jobs = new Gauge({
    name: 'sluice_queue_jobs',
    help: 'Jobs by queue and state, as of the last monitor pass.',
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

  const readFineTuningJobs = databaseRead(() =>
    db
      .selectFrom('fine_tuning_job')
      .select(({ fn }) => ['status', fn.countAll<number>().as('jobs')])
      .groupBy('status')
      .execute(),
  );
  const fineTuningJobs: Gauge = new Gauge({
    name: 'sluice_fine_tuning_jobs',
    help: 'Fine-tuning jobs by status.',
    labelNames: ['status'],
    registers,
    async collect() {
      const counts = (await readFineTuningJobs()) ?? [];
      fineTuningJobs.reset();
      for (const { status, jobs: count } of counts) fineTuningJobs.set({ status }, count);
    },
  });

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
}

/** What is read from the database for /metrics: once a second at most, and waited for a second at most. */
function databaseRead<Value>(read: () => Promise<Value>): () => Promise<Value | undefined> {
  const bounded = createBoundedRead(read, { everyMs: 1_000, waitMs: 1_000 });
  return async () => (await bounded()).value;
}
