import { describe, expect, test } from 'vitest';
import type { EventObject } from '#libs/contracts/logs/events.ts';
import { toLogRecord } from '#libs/request-log/read/to-log-record.ts';
import { newLogUuid } from '#libs/request-log/row/log-id.ts';
import type { SealedRow } from '#libs/request-log/seal/sealed-calls.ts';
import { logEntry } from '#test/log-entry.ts';
import { encodeItem, isWanted, joinItems } from './event-formats.ts';
import { toCallItem, toEventItem } from './siem-item.ts';

type Form = Parameters<typeof encodeItem>[0];
const encodeEvent = (form: Form, one: EventObject): string => encodeItem(form, toEventItem(one));

const key = { type: 'api_key', id: 'key_1', principal: { type: 'user', id: 'user_1', role: 'admin' } };

const event = (changes: Partial<EventObject> = {}): EventObject => ({
  id: '0b5e7d4e-4a52-4f0c-9d3f-4a1f6f0f7c11',
  object: 'event',
  type: 'config.created',
  stream: 'cfg_1',
  stream_version: 1,
  schema_version: 1,
  workspace_id: 'ws_1',
  data: { name: 'Über' },
  metadata: { actor: key, request_id: 'req_1', address: '203.0.113.7' },
  recorded_at: '2026-11-28T19:00:00.123Z',
  sha256: 'aa',
  data_sha256: 'bb',
  data_salt: 'cc',
  metadata_sha256: 'dd',
  metadata_salt: 'ee',
  ...changes,
});

const system = { actor: { type: 'system', id: 'worker' } };
const refused = event({
  type: 'organisation.request_refused',
  data: { count: 3, addresses: [{ address: '198.51.100.4', count: 3 }] },
  metadata: { actor: { type: 'system', id: 'audit' } },
});

test('our format is the event as GET /v1/events shows it, one on each line', () => {
  const form = { type: 'https', format: 'sluice' } as const;
  const { text, contentType } = joinItems(form, [encodeEvent(form, event()), encodeEvent(form, refused)]);
  expect(contentType).toBe('application/x-ndjson');
  expect(text.endsWith('\n')).toBe(true);
  expect(
    text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as object),
  ).toEqual([event(), refused]);
});

test('a CloudEvent has the required attributes and no other names than the specification allows', () => {
  const form = { type: 'https', format: 'cloudevents' } as const;
  const { text, contentType } = joinItems(form, [encodeEvent(form, event())]);
  expect(contentType).toBe('application/cloudevents-batch+json');
  const [made] = JSON.parse(text) as Record<string, unknown>[];
  for (const name of ['id', 'source', 'specversion', 'type']) expect(made?.[name]).toMatch(/./);
  expect(Object.keys(made ?? {}).filter((name) => !/^[a-z0-9]{1,20}$/.test(name))).toEqual([]);
  expect(made).toMatchObject({
    specversion: '1.0',
    id: event().id,
    type: 'sluice.config.created',
    time: event().recorded_at,
    data: event(),
  });
  // In a file, each line is an event.
  const file = { type: 'folder', format: 'cloudevents' } as const;
  expect(joinItems(file, [encodeEvent(file, event())]).text).toBe(`${JSON.stringify(made)}\n`);
});

describe('an OCSF event', () => {
  const form = { type: 'https', format: 'ocsf' } as const;
  const made = (one: EventObject) => JSON.parse(encodeEvent(form, one)) as Record<string, unknown>;
  const base = ['activity_id', 'category_uid', 'class_uid', 'metadata', 'severity_id', 'time', 'type_uid'];
  const required: Readonly<Record<number, readonly string[]>> = {
    3001: [...base, 'user'],
    3002: [...base, 'user', 'service'],
    6003: [...base, 'actor', 'api', 'src_endpoint'],
  };
  const user = (type: string, data: EventObject['data'] = {}) => event({ type, stream: 'user_2', data });
  test.each([
    [event(), 6003, 1],
    [event({ type: 'config.updated' }), 6003, 3],
    [event({ type: 'config.deleted' }), 6003, 4],
    [event({ type: 'api_key.contents_read' }), 6003, 2],
    [event({ type: 'api_key.request_refused', data: { method: 'DELETE', route: '/v1/x', status: 403 } }), 6003, 4],
    [event({ type: 'batch.completed', metadata: system }), 6003, 99],
    [user('user.created', { email: 'a@example.com' }), 3001, 1],
    [user('user.erased'), 3001, 6],
    [user('user.workspace_joined'), 3001, 99],
    [user('user.request_refused', { method: 'GET' }), 6003, 2],
    [event({ type: 'session.created', data: { principal: { type: 'user', id: 'user_1' } } }), 3002, 1],
    [event({ type: 'session.ended', data: {} }), 3002, 2],
    [event({ type: 'session.refused', data: { addresses: ['198.51.100.4'] } }), 3002, 1],
    [refused, 3002, 1],
  ])('has what its class requires: %j', (one, classUid, activityId) => {
    const ocsf = made(one);
    expect(ocsf).toMatchObject({
      class_uid: classUid,
      activity_id: activityId,
      category_uid: Math.floor(classUid / 1_000),
      type_uid: classUid * 100 + activityId,
      time: Date.parse(one.recorded_at),
      metadata: { version: '1.3.0', product: { name: 'Sluice', vendor_name: 'Sluice' }, uid: one.id },
      status_id: one.type.endsWith('refused') ? 2 : 1,
      unmapped: one,
    });
    expect((required[classUid] ?? []).filter((name) => ocsf[name] === undefined)).toEqual([]);
  });

  test('names the key and its owner, the operation and the address', () => {
    expect(made(event())).toMatchObject({
      actor: { user: { uid: 'user_1', type_id: 1, credential_uid: 'key_1' } },
      api: { operation: 'config.created', request: { uid: 'req_1' } },
      src_endpoint: { ip: '203.0.113.7' },
    });
    expect(made(refused)).toMatchObject({ src_endpoint: { ip: '198.51.100.4' }, user: { name: 'unknown' } });
    expect(made(event({ metadata: system }))).toMatchObject({ src_endpoint: { svc_name: 'sluice' } });
  });
});

/** The record of a call that a guardrail refused. */
const row: SealedRow = {
  ...logEntry({
    model: 'm',
    status: 446,
    error_code: 'guardrail_denied',
    attempts: 0,
    user_id: 'user_1',
    key_id: 'key_1',
  }),
  id: newLogUuid(Date.parse('2026-11-28T19:00:00.123Z'), 1),
  sequence: 1,
  process_id: '0193a000-0000-7000-8000-000000000001',
};

test('the record of a call is as in GET /v1/logs, with its workspace, in each format', () => {
  const made = (format: Form['format'], type: Form['type'] = 'folder') =>
    JSON.parse(encodeItem({ type, format }, toCallItem(row))) as Record<string, unknown>;
  const record = { ...toLogRecord(row), workspace_id: row.workspace_id };
  expect(made('sluice')).toEqual(record);
  expect(made('cloudevents')).toMatchObject({ id: record.id, type: 'sluice.call.refused', data: record });
  expect(made('sluice', 'splunk_hec')).toMatchObject({ time: Date.parse(record.created_at) / 1_000, event: record });
  expect(made('ocsf')).toMatchObject({
    class_uid: 6003,
    type_uid: 600_399,
    status_id: 2,
    status_code: '446',
    metadata: { uid: record.id, event_code: 'call.refused' },
    actor: { user: { uid: 'user_1', credential_uid: 'key_1' } },
    api: { operation: row.operation, response: { code: 446 }, request: { uid: row.request_id } },
    src_endpoint: { svc_name: 'sluice' },
    unmapped: record,
  });
});

test('a page of OpenTelemetry is a request of OTLP, with the attributes for generative AI', () => {
  const form = { type: 'https', format: 'opentelemetry' } as const;
  const items = [toEventItem(event()), toEventItem(refused), toCallItem(row)];
  const { text, contentType } = joinItems(
    form,
    items.map((item) => encodeItem(form, item)),
  );
  expect(contentType).toBe('application/json');
  type Record = { attributes: { key: string; value: { stringValue?: string; intValue?: string } }[] } & {
    [name: string]: unknown;
  };
  const { resourceLogs } = JSON.parse(text) as { resourceLogs: [{ scopeLogs: [{ logRecords: Record[] }] }] };
  const [created, refusal, call] = resourceLogs[0].scopeLogs[0].logRecords as [Record, Record, Record];
  expect(created).toMatchObject({
    timeUnixNano: `${Date.parse(event().recorded_at)}000000`,
    severityNumber: 9,
    eventName: 'sluice.config.created',
    body: { stringValue: JSON.stringify(event()) },
  });
  expect(refusal).toMatchObject({ severityNumber: 13 });
  expect(call).toMatchObject({
    severityNumber: 13,
    eventName: 'sluice.call.refused',
    traceId: expect.stringMatching(/^[0-9a-f]{32}$/) as string,
    spanId: expect.stringMatching(/^[0-9a-f]{16}$/) as string,
  });
  const valueOf = ({ attributes }: Record, name: string) => attributes.find(({ key }) => key === name)?.value;
  expect(valueOf(created, 'user.id')).toEqual({ stringValue: 'user_1' });
  expect(valueOf(created, 'client.address')).toEqual({ stringValue: '203.0.113.7' });
  expect(valueOf(call, 'gen_ai.request.model')).toEqual({ stringValue: 'm' });
  expect(valueOf(call, 'http.response.status_code')).toEqual({ intValue: '446' });
  expect(valueOf(call, 'error.type')).toEqual({ stringValue: 'guardrail_denied' });
});

test('an event of the HTTP Event Collector has its time in seconds', () => {
  const form = { type: 'splunk_hec', format: 'sluice' } as const;
  expect(JSON.parse(encodeEvent(form, event()))).toEqual({
    time: Date.parse(event().recorded_at) / 1_000,
    source: 'sluice',
    sourcetype: 'sluice:sluice',
    event: event(),
  });
});

test('a syslog message follows the grammar of RFC 5424, in frames of RFC 5425', () => {
  const form = { type: 'syslog', format: 'sluice' } as const;
  const long = event({ type: 'fine_tuning_job.checkpoint_recorded', data: { name: '\u007f😀' } });
  const { text } = joinItems(
    form,
    [event(), refused, long].map((one) => encodeEvent(form, one)),
  );
  const bytes = Buffer.from(text);
  const messages: string[] = [];
  for (let at = 0; at < bytes.length;) {
    const space = bytes.indexOf(0x20, at);
    const length = Number(bytes.toString('latin1', at, space));
    messages.push(bytes.toString('latin1', space + 1, space + 1 + length));
    at = space + 1 + length;
  }
  // HEADER SP STRUCTURED-DATA SP MSG, with the lengths of section 6.
  const grammar =
    /^<(1[0-8]\d|19[01]|[1-9]?\d)>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z ([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) ([!-~]{1,32}) (-|\[.+\]) (.*)$/;
  const parsed = messages.map((message) => grammar.exec(message));
  expect(parsed.map((parts) => [parts?.[1], parts?.[5]])).toEqual([
    ['110', 'config.created'],
    ['108', 'organisation.request_refused'],
    ['110', 'fine_tuning_job.checkpoint_recor'],
  ]);
  expect(parsed.map((parts) => JSON.parse(parts?.[7] ?? '') as object)).toEqual([event(), refused, long]);
});

test('a destination can leave out what workers record, or all but refusals', () => {
  const batch = event({ type: 'batch.lines_settled', metadata: system });
  const refusal = event({ type: 'api_key.request_refused' });
  const signIn = event({ type: 'session.refused' });
  const verdict = event({ type: 'api_key.guardrail_failed' });
  const all = [event(), batch, refusal, signIn, refused, verdict];
  const wanted = (events: Parameters<typeof isWanted>[0]) => all.filter((one) => isWanted(events, one));
  expect(wanted('all')).toEqual(all);
  expect(wanted('audit')).toEqual([event(), refusal, signIn, refused, verdict]);
  expect(wanted('refusals')).toEqual([refusal, signIn, refused, verdict]);
});
