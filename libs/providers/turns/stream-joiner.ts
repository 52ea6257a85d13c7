/**
 * What a client has seen of an answer. `nothing`: no content. `reasoning`: only reasoning, which it can do without. `text`:
 * also text. `other`: tool calls, images, the end, or more than one choice.
 */
export type Shown = 'nothing' | 'reasoning' | 'text' | 'other';

const order: readonly Shown[] = ['nothing', 'reasoning', 'text', 'other'];

/**
 * Joins the streams of several targets, so that a client reads one answer. As long as another target could continue the
 * answer, `read` receives each payload that is sent to the client.
 */
export abstract class StreamJoiner {
  shown: Shown = 'nothing';
  text = '';

  /** Reads a payload that is sent to the client. Returns how many characters of it are retained. */
  abstract read(payload: string): number;

  /** The stream broke off, and another one follows. Returns the payloads that end what is open. */
  abstract startNext(): readonly string[];

  /** Returns a payload of the stream that follows as part of the same answer. null: it is left out. */
  abstract rewrite(payload: string): string | null;

  /** Records what a payload shows. Returns the length of its text, which is retained. */
  protected show(shown: Shown, text = ''): number {
    if (order.indexOf(shown) > order.indexOf(this.shown)) this.shown = shown;
    this.text += text;
    return text.length;
  }
}

/** The request for the rest of an answer. */
const continuePrompt =
  'Your last message was cut off by a technical fault. Continue it exactly where it ends, without repeating or explaining anything.';

/** The two turns that ask for the rest of a text: the model's, which ends with the text, and the user's. */
export const restTurns = <Turn>(text: string, toTurn: (role: 'assistant' | 'user', text: string) => Turn): Turn[] => [
  toTurn('assistant', text),
  toTurn('user', continuePrompt),
];
