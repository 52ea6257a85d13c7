import { version } from '#libs/kernel/version.ts';
import { isRefusal, type SiemItem } from './siem-item.ts';

// Log records in the JSON encoding of OTLP 1.5 (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): IDs are
// hexadecimal, and 64-bit integers are texts.

type AttributeValue = string | number | boolean | string[];

/** Severities INFO and WARN of the log data model. */
const severities = {
  info: { severityNumber: 9, severityText: 'INFO' },
  warn: { severityNumber: 13, severityText: 'WARN' },
};

/** An item as a LogRecord, whose body is the item as the API shows it. */
export function toOtlpRecord({ type, time, data, toTelemetry }: SiemItem): object {
  const { attributes, trace } = toTelemetry();
  const timeUnixNano = `${Date.parse(time)}000000`;
  return {
    timeUnixNano,
    observedTimeUnixNano: timeUnixNano,
    ...(isRefusal(type) ? severities.warn : severities.info),
    eventName: `sluice.${type}`,
    body: { stringValue: JSON.stringify(data) },
    attributes: toAttributes(attributes),
    ...trace,
  };
}

/** The body of a request to `/v1/logs` of a collector, with these records. */
export function joinOtlpRecords(records: readonly string[]): string {
  const resource = { attributes: toAttributes({ 'service.name': 'sluice', 'service.version': version }) };
  const [scope, head] = [JSON.stringify({ name: 'sluice', version }), JSON.stringify(resource)];
  return `{"resourceLogs":[{"resource":${head},"scopeLogs":[{"scope":${scope},"logRecords":[${records.join(',')}]}]}]}`;
}

const toAttributes = (attributes: Readonly<Record<string, AttributeValue>>): object[] =>
  Object.entries(attributes).map(([key, value]) => ({ key, value: toAnyValue(value) }));

function toAnyValue(value: AttributeValue): object {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  if (typeof value === 'number') return Number.isInteger(value) ? { intValue: `${value}` } : { doubleValue: value };
  return { arrayValue: { values: value.map(toAnyValue) } };
}
