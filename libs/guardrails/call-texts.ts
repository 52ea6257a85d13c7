import type { Operation } from '#libs/providers/provider.ts';
import { asRecord } from '#libs/forwarding/usage.ts';

type Body = Readonly<Record<string, unknown>>;

/**
 * What the checks of one phase read; a check passes when it passes on each text. `said`: where words and patterns are
 * looked for. `measured`: what counts, JSON and URLs are judged on. An input is measured by its last message, as the ancestor does; what is
 * looked for is looked for in all messages as one text, but those of the system and the developer, because a text that is
 * forbidden works as well from an earlier message. An output has one text for each choice.
 */
export type CallTexts = {
  said: readonly string[];
  measured: readonly string[];
  /** There is input that is no text (token ids): nothing can be said about it. */
  hasUnreadable: boolean;
};

const noTexts: CallTexts = { said: [], measured: [], hasUnreadable: false };

/** The texts of a request's body. */
export function inputTexts(operation: Operation, body: Body): CallTexts {
  if (operation === 'chat') {
    const messages = listOf(body['messages']).map(asRecord);
    const last = messages.at(-1);
    return {
      said: messages.length === 0 ? [] : [messages.filter(isSaid).map(textOfMessage).join('\n')],
      measured: last === undefined ? [] : [textOfMessage(last)],
      hasUnreadable: false,
    };
  }
  const input = operation === 'completions' || operation === 'images' ? body['prompt'] : body['input'];
  if (input === undefined || input === null) return noTexts;
  const parts = Array.isArray(input) ? (input as unknown[]) : [input];
  const texts = parts.filter((part) => typeof part === 'string');
  return { said: texts, measured: texts, hasUnreadable: texts.length < parts.length };
}

/** The texts of a whole answer: of its choices, or of a response's messages; none of one without any (embeddings). */
export function outputTexts(body: Body): CallTexts {
  const choices = listOf(body['choices']).map((choice) => {
    const { message, text } = asRecord(choice);
    return typeof text === 'string' ? text : textOfMessage(asRecord(message));
  });
  const messages = listOf(body['output'])
    .map(asRecord)
    .filter(({ type }) => type === 'message');
  const texts = [...choices, ...messages.map(textOfMessage)];
  return { said: texts, measured: texts, hasUnreadable: false };
}

const isSaid = ({ role }: Body): boolean => role !== 'system' && role !== 'developer';

/** The text of a message; of parts, their texts in lines. */
function textOfMessage({ content }: Body): string {
  if (typeof content === 'string') return content;
  return listOf(content)
    .map((part) => asRecord(part)['text'])
    .filter((text) => typeof text === 'string')
    .join('\n');
}

const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);
