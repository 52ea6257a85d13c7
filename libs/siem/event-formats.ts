import { hostname } from 'node:os';
import type { EventObject } from '#libs/contracts/logs/events.ts';
import { joinOtlpRecords, toOtlpRecord } from './otlp-record.ts';
import type { SiemDestinationData } from '#libs/resources/siem/siem-destination-data.ts';
import { isRefusal, type SiemItem } from './siem-item.ts';

type Form = Pick<SiemDestinationData, 'type' | 'format'>;

const formats: Readonly<Record<SiemDestinationData['format'], (item: SiemItem) => object>> = {
  sluice: ({ data }) => data,
  cloudevents: toCloudEvent,
  ocsf: (item) => item.toOcsf(),
  opentelemetry: toOtlpRecord,
};

/** Whether a destination gets an event. `audit`: the events that `GET /v1/audit-logs` lists. */
export function isWanted(
  events: SiemDestinationData['events'],
  { type, metadata: { actor } }: Pick<EventObject, 'type' | 'metadata'>,
): boolean {
  if (events === 'refusals') return isRefusal(type);
  return events === 'all' || actor.type !== 'system' || actor.id !== 'worker';
}

/** An item as a destination gets it: a part of a page. */
export function encodeItem({ type, format }: Form, item: SiemItem): string {
  const formatted = formats[format](item);
  if (type === 'splunk_hec') return JSON.stringify(toHecEvent(item, format, formatted));
  const json = JSON.stringify(formatted);
  return type === 'syslog' ? toSyslogFrame(item, json) : json;
}

/** The body or bytes for several items, and the media type of the body. */
export function joinItems({ type, format }: Form, items: readonly string[]): { text: string; contentType: string } {
  if (type === 'syslog') return { text: items.join(''), contentType: '' };
  if (format === 'opentelemetry' && type !== 'splunk_hec')
    return { text: `${joinOtlpRecords(items)}\n`, contentType: 'application/json' };
  if (type === 'https' && format === 'cloudevents')
    return { text: `[${items.join(',')}]`, contentType: 'application/cloudevents-batch+json' };
  const contentType = type === 'splunk_hec' ? 'application/json' : 'application/x-ndjson';
  return { text: `${items.join('\n')}\n`, contentType };
}

/**
 * An item in the JSON format of CloudEvents 1.0.2 (https://github.com/cloudevents/spec/tree/v1.0.2):
 * `id`, `source`, `specversion` and `type` are required, and `source` with `id` identifies the event.
 */
function toCloudEvent({ id, type, workspaceId, subject, time, data }: SiemItem): object {
  return {
    specversion: '1.0',
    id,
    source: `/workspaces/${workspaceId}`,
    type: `sluice.${type}`,
    subject,
    time,
    datacontenttype: 'application/json',
    data,
  };
}

/**
 * An event for the endpoint /services/collector/event of Splunk
 * (https://docs.splunk.com/Documentation/Splunk/latest/Data/FormateventsforHTTPEventCollector): `event` is required, and
 * `time` is in seconds.
 */
const toHecEvent = ({ time }: SiemItem, format: string, formatted: object): object => ({
  time: Date.parse(time) / 1_000,
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
function toSyslogFrame({ type, time }: Pick<SiemItem, 'type' | 'time'>, json: string): string {
  const ascii = json.replaceAll(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
  const message = `<${priority(type)}>1 ${time} ${host} sluice - ${type.slice(0, 32)} - ${ascii}`;
  return `${message.length} ${message}`;
}
