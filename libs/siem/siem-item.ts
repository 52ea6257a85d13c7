import type { EventObject } from '#libs/contracts/logs/events.ts';
import { callSpanId, w3cTraceId } from '#libs/kernel/trace-ids.ts';
import { toLogRecord } from '#libs/request-log/read/to-log-record.ts';
import { toCallAttributes, type SpanAttributes } from '#libs/request-log/record/call-spans.ts';
import type { SealedRow } from '#libs/request-log/seal/sealed-calls.ts';
import { toOcsfCall, toOcsfEvent, type CallObject } from './ocsf-event.ts';

/** Whether Sluice refused something, by the type of an item. */
export const isRefusal = (type: string): boolean => /\.(?:refused|request_refused|guardrail_failed)$/.test(type);

/** What is pushed: an event of the log, or the record of a call. */
export type SiemItem = {
  id: string;
  /** The type of the event; for a call `call.succeeded`, `call.refused` or `call.failed`. */
  type: string;
  workspaceId: string;
  /** The record that the event belongs to, or the request. */
  subject: string;
  /** When it was recorded, in ISO 8601. */
  time: string;
  /** As the API shows it. */
  data: object;
  toOcsf: () => object;
  /** What a log record of OpenTelemetry has in addition. */
  toTelemetry: () => { attributes: SpanAttributes; trace?: { traceId: string; spanId: string } };
};

export const toEventItem = (event: EventObject): SiemItem => ({
  id: event.id,
  type: event.type,
  workspaceId: event.workspace_id,
  subject: event.stream,
  time: event.recorded_at,
  data: event,
  toOcsf: () => toOcsfEvent(event),
  toTelemetry: () => {
    const { actor, request_id: requestId, address } = event.metadata;
    const attributes: SpanAttributes = {
      'sluice.event_id': event.id,
      'sluice.workspace_id': event.workspace_id,
      'sluice.stream': event.stream,
      'sluice.actor_type': actor.type,
      'user.id': actor.principal?.id ?? actor.id,
      ...(requestId === undefined ? {} : { 'sluice.request_id': requestId }),
      ...(address === undefined ? {} : { 'client.address': address }),
    };
    return { attributes };
  },
});

export function toCallItem(row: SealedRow): SiemItem {
  const call: CallObject = { ...toLogRecord(row), workspace_id: row.workspace_id };
  const type = `call.${call.outcome}`;
  return {
    id: call.id,
    type,
    workspaceId: row.workspace_id,
    subject: row.request_id,
    time: call.created_at,
    data: call,
    toOcsf: () => toOcsfCall(call, type),
    toTelemetry: () => ({
      attributes: {
        ...toCallAttributes(row),
        'sluice.call_id': call.id,
        ...(row.key_id === null ? {} : { 'sluice.key_id': row.key_id }),
        ...(row.user_id === null ? {} : { 'user.id': row.user_id }),
      },
      trace: { traceId: w3cTraceId(row.trace_id ?? row.request_id), spanId: callSpanId(row.request_id) },
    }),
  };
}
