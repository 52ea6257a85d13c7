import { hostname } from 'node:os';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { version } from '#libs/kernel/version.ts';
import { recordForOrganisation, type ProcessStarted } from '#libs/people/facts/organisation-events.ts';

/** Texts that cannot contain a secret. Every other text can, also inside a URL. */
const openTexts: ReadonlySet<string> = new Set([
  'HOST',
  'SLUICE_OPERATIONS_HOST',
  'SLUICE_LOG_LEVEL',
  'SLUICE_S3_REGION',
  'SLUICE_EGRESS_ALLOW',
  'SLUICE_UNPRICED_CALLS',
  'OTEL_TRACES_EXPORTER',
  'OTEL_METRICS_EXPORTER',
  'OTEL_TRACES_SAMPLER',
]);

/** Appends the event of a start, with the settings of the process, defaults included. */
export async function recordStart(
  eventLog: Pick<EventLog, 'transact'>,
  app: { name: string; isStandalone?: boolean | undefined },
  config: Readonly<Record<string, unknown>>,
): Promise<void> {
  const data: ProcessStarted = {
    process: app.name,
    release: version,
    node_version: process.version,
    pid: process.pid,
    // `npm start` has a channel to its processes.
    is_standalone: app.isStandalone ?? process.send !== undefined,
    settings: describeSettings(config),
  };
  const metadata = { actor: { type: 'system' as const, id: 'process start', host: hostname() } };
  await recordForOrganisation(eventLog, { type: 'organisation.process_started', data }, metadata);
}

/**
 * The settings of a process that are not absent: numbers and switches as they are, and texts that can contain a secret as `set`.
 * Durations are in milliseconds, sizes in bytes.
 * @testOnly
 */
export function describeSettings(config: Readonly<Record<string, unknown>>): ProcessStarted['settings'] {
  const settings: ProcessStarted['settings'] = {};
  for (const [name, value] of Object.entries(config)) {
    if (value === undefined || value === '') continue;
    const isOpen = typeof value === 'number' || typeof value === 'boolean' || openTexts.has(name);
    settings[name] = isOpen ? (value as string | number | boolean) : 'set';
  }
  return settings;
}
