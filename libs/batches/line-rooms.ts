import { createHash } from 'node:crypto';
import { memberValue } from '#libs/kernel/json-members.ts';
import type { BatchRow } from './batch-model.ts';
import { modelOf, replacedModel } from './call-line.ts';
import type { Room, Slots } from './slots.ts';

/**
 * The room for each line of a batch, among the calls of its workspace, those that go where it goes, and those of its batch:
 * many batches of one credential and model that hang are one group. What is known of that before a line is read is its workspace, the
 * batch's target (of a config: which one), and the model. (A secret that came with the batch is stored for each anew, and
 * says nothing.)
 */
export function createLineRooms(slots: Pick<Slots, 'of'>, batch: BatchRow): (line: Buffer) => Room {
  const target = JSON.stringify(batch.target, (name, value: unknown) => (name === 'secret_id' ? undefined : value));
  const place = createHash('sha256').update(`${batch.workspace_id}\n${target}`).digest('base64');
  const roomOf = (model: string | null): Room => slots.of(batch.workspace_id, `${place} ${model ?? ''}`, batch.id);
  const model = replacedModel(batch) ?? batch.model;
  if (model !== null) {
    const room = roomOf(model);
    return () => room;
  }
  const rooms = new Map<string | null, Room>();
  return (line) => {
    const body = memberValue(line, 'body');
    const own = body === undefined ? null : modelOf(body);
    const room = rooms.get(own) ?? roomOf(own);
    rooms.set(own, room);
    return room;
  };
}
