import { type Json, asText, toRecords } from '../turns/json-value.ts';
import { deltaEvent, EventNumbers, type PieceKind, type Place, wholeEvent } from './item-events.ts';

/** A whole response as the events of a stream. Items of other kinds are added with all of their content. */
export function splitResponse(response: Json): string[] {
  const numbers = new EventNumbers();
  const begun = { ...response, status: 'in_progress', incomplete_details: null, output: [], usage: null };
  const status = asText(response['status']) ?? 'completed';
  return [
    numbers.event('created', { response: begun }),
    numbers.event('in_progress', { response: begun }),
    ...toRecords(response['output']).flatMap((item, index) => splitItem(numbers, item, index)),
    numbers.event(status === 'incomplete' ? status : 'completed', { response }),
  ];
}

function splitItem(numbers: EventNumbers, item: Json, output_index: number): string[] {
  const place = { item_id: asText(item['id']) ?? '', output_index };
  const added = (empty: Json): string =>
    numbers.event('output_item.added', { output_index, item: { ...item, ...empty } });
  const done = (): string => numbers.event('output_item.done', { output_index, item });
  switch (item['type']) {
    case 'message':
      return [added({ status: 'in_progress', content: [] }), ...splitContent(numbers, item, place), done()];
    case 'reasoning':
      return [added({ summary: [] }), ...splitSummary(numbers, item, place), done()];
    case 'function_call':
      return [
        added({ status: 'in_progress', arguments: '' }),
        ...splitText(numbers, 'function_call', place, item['arguments']),
        done(),
      ];
    case 'custom_tool_call':
      return [
        added({ status: 'in_progress', input: '' }),
        ...splitText(numbers, 'custom_tool_call', place, item['input']),
        done(),
      ];
    default:
      return [added({}), done()];
  }
}

function splitText(numbers: EventNumbers, kind: PieceKind, at: Json, text: unknown): string[] {
  const whole = asText(text) ?? '';
  return [...(whole === '' ? [] : [deltaEvent(numbers, kind, at, whole)]), wholeEvent(numbers, kind, at, whole)];
}

const splitContent = (numbers: EventNumbers, { content }: Json, place: Place): string[] =>
  toRecords(content).flatMap((part, content_index) => {
    const at = { ...place, content_index };
    const isRefusal = part['type'] === 'refusal';
    const empty = isRefusal ? { ...part, refusal: '' } : { ...part, text: '' };
    return [
      numbers.event('content_part.added', { ...at, part: empty }),
      ...splitText(numbers, isRefusal ? 'refusal' : 'text', at, isRefusal ? part['refusal'] : part['text']),
      numbers.event('content_part.done', { ...at, part }),
    ];
  });

const splitSummary = (numbers: EventNumbers, { summary }: Json, place: Place): string[] =>
  toRecords(summary).flatMap((part, summary_index) => {
    const at = { ...place, summary_index };
    return [
      numbers.event('reasoning_summary_part.added', { ...at, part: { ...part, text: '' } }),
      ...splitText(numbers, 'summary', at, part['text']),
      numbers.event('reasoning_summary_part.done', { ...at, part }),
    ];
  });
