import { chatDialect } from './chat/index.ts';
import { throughChat } from './chat/through-chat.ts';
import { messagesDialect } from './messages/index.ts';
import { responsesDialect } from './responses/index.ts';
import { generateContentDialect } from './generate-content/index.ts';
import { splitCompletion } from './chat/split-completion.ts';
import type { Operation, Provider, Translation } from './provider.ts';
import type { Dialect } from './provider.ts';
import type { Json } from './turns/json-value.ts';

const dialects: Partial<Record<Operation, Dialect>> = {
  chat: chatDialect,
  messages: messagesDialect,
  responses: responsesDialect,
  generate_content: generateContentDialect,
};

/** The dialect of an operation; that of chat for operations that do not ask for the next turn of a conversation. */
export const findDialect = (operation: Operation): Dialect => dialects[operation] ?? chatDialect;

/**
 * Returns a whole answer as the payloads of the stream that was requested, for a provider that did not stream: official SDKs
 * would turn it into an empty stream without an error.
 */
export const splitAnswer = (operation: string, answer: Json, includeUsage: boolean): string[] =>
  operation === 'completions'
    ? splitCompletion('completions', answer, includeUsage)
    : findDialect(operation as Operation).splitAnswer(answer, includeUsage);

/** Whether a provider can serve an operation for at least some models. */
export const canServe = ({ operations }: Provider, operation: Operation): boolean =>
  operations[operation] !== undefined || (dialects[operation] !== undefined && operations.chat !== undefined);

/** Whether a stream ends with a chunk that has its usage and nothing else. Other dialects have it within their events. */
export const endsWithUsageChunk = (operation: string): boolean => findDialect(operation as Operation) === chatDialect;

const translated = new WeakMap<Translation, Translation>();

/**
 * Returns how a provider serves an operation: in its own API if it has that dialect for the model, otherwise by translating
 * between the dialect and its chat. undefined: it cannot.
 */
export function findTranslation(
  { id, operations }: Provider,
  operation: Operation,
  model: string,
): Translation | undefined {
  const own = operations[operation];
  if (own !== undefined && own.serves?.(model) !== false) return own;
  const { chat } = operations;
  if (dialects[operation] === undefined || chat === undefined) return undefined;
  if (!chat.passThrough) return chat;
  let translation = translated.get(chat);
  if (translation === undefined) translated.set(chat, (translation = throughChat(chat, id)));
  return translation;
}
