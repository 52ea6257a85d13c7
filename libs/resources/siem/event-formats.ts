import { hostname } from 'node:os';
import type { EventObject } from '#libs/contracts/logs/events.ts';
import { toOcsfEvent } from './ocsf-event.ts';
import type { SiemDestinationData } from './siem-destination-data.ts';

type Form = Pick<SiemDestinationData, 'type' | 'format'>;

const formats: Readonly<Record<SiemDestinationData['format'], (event: EventObject) => object>> = {
  sluice: (event) => event,
  cloudevents: toCloudEvent,
  ocsf: toOcsfEvent,
};

const isRefusal = (type: string): boolean => /\.(?:refused|request_refused|guardrail_failed)$/.test(type);

/** Whether a destination gets an event. `audit`: the events that `GET /v1/audit-logs` lists. */
export function isWanted(
  events: SiemDestinationData['events'],
  { type, metadata: { actor } }: Pick<EventObject, 'type' | 'metadata'>,
): boolean {
  if (events === 'refusals') return isRefusal(type);
  return events === 'all' || actor.type !== 'system' || actor.id !== 'worker';
}

/** An event as a destination gets it: one item of a page. */
export function encodeEvent({ type, format }: Form, event: EventObject): string {
  const formatted = formats[format](event);
  if (type === 'splunk_hec') return JSON.stringify(toHecEvent(event, format, formatted));
  const json = JSON.stringify(formatted);
  return type === 'syslog' ? toSyslogFrame(event, json) : json;
}

/** The body or bytes for several items, and the media type of the body. */
export function joinItems({ type, format }: Form, items: readonly string[]): { text: string; contentType: string } {
  if (type === 'syslog') return { text: items.join(''), contentType: '' };
  if (type === 'https' && format === 'cloudevents')
    return { text: `[${items.join(',')}]`, contentType: 'application/cloudevents-batch+json' };
  const contentType = type === 'splunk_hec' ? 'application/json' : 'application/x-ndjson';
  return { text: `${items.join('\n')}\n`, contentType };
}

/**
 * An event in the JSON format of CloudEvents 1.0.2 (https://github.com/cloudevents/spec/tree/v1.0.2):
 * `id`, `source`, `specversion` and `type` are required, and `source` with `id` identifies the event.
 */
function toCloudEvent(event: EventObject): object {
  return {
    specversion: '1.0',
    id: event.id,
    source: `/workspaces/${event.workspace_id}`,
    type: `sluice.${event.type}`,
    subject: event.stream,
    time: event.recorded_at,
    datacontenttype: 'application/json',
    data: event,
  };
}

/**
 * An event for the endpoint /services/collector/event of Splunk
 * (https://docs.splunk.com/Documentation/Splunk/latest/Data/FormateventsforHTTPEventCollector): `event` is required, and
 * `time` is in seconds.
 */
const toHecEvent = (event: EventObject, format: string, formatted: object): object => ({
  time: Date.parse(event.recorded_at) / 1_000,
  source: 'sluice',
  sourcetype: `sluice:${format}`,
  event: formatted,
});

/** Facility 13 (log audit), with the severity 4 (warning) or 6 (informational). */
const priority = (type: string): number => 13 * 8 + (isRefusal(type) ? 4 : 6);

/** HOSTNAME has 1 to 255 printable ASCII characters; `-` is its NILVALUE. */
const host =
  hostname()
    .replaceAll(/[^!-~]/g, '')
    .slice(0, 255) || '-';

/**
 * A message of RFC 5424 (section 6), framed by its length in octets (RFC 5425 4.3). MSGID is the type of the event, cut at
 * its limit of 32 characters. The JSON has only ASCII characters: a UTF-8 message would have to begin with a byte order mark,
 * which parsers of JSON reject.
 */
function toSyslogFrame({ type, recorded_at }: Pick<EventObject, 'type' | 'recorded_at'>, json: string): string {
  const ascii = json.replaceAll(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
  const message = `<${priority(type)}>1 ${recorded_at} ${host} sluice - ${type.slice(0, 32)} - ${ascii}`;
  return `${message.length} ${message}`;
}
