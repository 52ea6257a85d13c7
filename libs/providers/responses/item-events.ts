import type { Json } from '../turns/json-value.ts';

/** Numbers the events of one stream (platform.openai.com/docs/api-reference/responses-streaming). */
export class EventNumbers {
  #next = 0;

  event(type: string, members: Json): string {
    this.#next += 1;
    return JSON.stringify({ type: `response.${type}`, sequence_number: this.#next - 1, ...members });
  }
}

/** Where an event belongs: its item, and the position of the item in the output. */
export type Place = { item_id: string; output_index: number };

/** How the pieces of a kind of part or item are named: the events, and the member that has the whole. */
const pieces = {
  text: { name: 'output_text', member: 'text', more: { logprobs: [] } },
  refusal: { name: 'refusal', member: 'refusal', more: {} },
  summary: { name: 'reasoning_summary_text', member: 'text', more: {} },
  function_call: { name: 'function_call_arguments', member: 'arguments', more: {} },
  custom_tool_call: { name: 'custom_tool_call_input', member: 'input', more: {} },
} as const;
export type PieceKind = keyof typeof pieces;

/** An event with a piece. `at` has its place, and the position of its part. */
export function deltaEvent(numbers: EventNumbers, kind: PieceKind, at: Json, delta: string): string {
  const { name, more } = pieces[kind];
  return numbers.event(`${name}.delta`, { ...at, delta, ...more });
}

/** The event after the last piece. */
export function wholeEvent(numbers: EventNumbers, kind: PieceKind, at: Json, whole: string): string {
  const { name, member, more } = pieces[kind];
  return numbers.event(`${name}.done`, { ...at, [member]: whole, ...more });
}
