import type { Worker } from 'node:cluster';
import { sleep } from '#libs/kernel/sleep.ts';

type Message = { question: string; id: number } | { answered: number; value: unknown };

/** Resolves with the answer of the other process, or with undefined if there was none in time. */
export type Ask = (question: string, withinMs: number) => Promise<unknown>;

/** What a process answers, by question. Without an answer, or with undefined, the other process waits in vain. */
export type Answers = Readonly<Record<string, () => Promise<unknown>>>;

/**
 * Lets two processes ask each other: the parent of the API processes, and one of them. `worker` is the other process (in
 * the parent) or this one (in its child).
 */
export function openChannel(worker: Worker, answers: Answers): Ask {
  const waiting = new Map<number, (value: unknown) => void>();
  let asked = 0;
  const send = (message: Message): void => {
    worker.send(message, undefined, {}, () => {}); // The other process can have ended.
  };
  const reply = async ({ question, id }: { question: string; id: number }): Promise<void> => {
    // After a failure, the other process gets no answer.
    const value = await answers[question]?.().catch(() => undefined);
    if (value !== undefined) send({ answered: id, value });
  };
  // Other messages are texts, such as `startedMessage`.
  worker.on('message', (message: Message | string) => {
    if (typeof message === 'string') return;
    if ('question' in message) void reply(message);
    else waiting.get(message.answered)?.(message.value);
  });
  return async (question, withinMs) => {
    asked += 1;
    const id = asked;
    const { promise, resolve } = Promise.withResolvers<unknown>();
    waiting.set(id, resolve);
    send({ question, id });
    const answered = new AbortController();
    const late = sleep(withinMs, answered.signal).then(() => undefined);
    const value = await Promise.race([promise, late]);
    answered.abort();
    waiting.delete(id);
    return value;
  };
}
