import type { Json } from './json-value.ts';

/**
 * What a client sees of a stream. `nothing`: no content. `reasoning`: no more than reasoning, which a client can do
 * without. `text`: also text. `other`: tool calls, images, the end, or more than one answer.
 */
export type Shown = 'nothing' | 'reasoning' | 'text' | 'other';

/** What one payload adds to a stream, with its text. */
export type PayloadShown = { shown: Shown; text: string };

/** Makes one stream of a stream that broke off and the one that follows it. */
export type StreamJoin = {
  /** Payloads that end what the first stream has left open. */
  ends: readonly string[];
  /** Returns a payload of the second stream as part of the first one. Throws SyntaxError for a text that is not JSON. */
  push: (payload: string) => readonly string[];
};

const order: readonly Shown[] = ['nothing', 'reasoning', 'text', 'other'];

/** The most that one of them shows. */
export const mostShown = (...all: readonly Shown[]): Shown =>
  order[Math.max(0, ...all.map((shown) => order.indexOf(shown)))] as Shown;

/** How the clients of a dialect see a stream that breaks off, and how another one follows it. */
export type BrokenStreams = {
  /** What a payload adds to the stream that a client sees. */
  readShown: (payload: string) => PayloadShown;
  /** Begins the stream that follows one of which these payloads were sent. */
  join: (sent: readonly string[]) => StreamJoin;
  /** The members of a request that ask for the rest of an answer of which this text was sent. */
  askForRest: (body: Json, text: string) => Json;
};

/** The request for the rest of an answer. */
const continuePrompt =
  'Your last message was cut off by a technical fault. Continue it exactly where it ends, without repeating or explaining anything.';

/** The turns that ask for the rest of a text: the model's, which ends with it, and the user's. */
export const restTurns = <Turn>(text: string, toTurn: (role: 'assistant' | 'user', text: string) => Turn): Turn[] => [
  toTurn('assistant', text),
  toTurn('user', continuePrompt),
];
