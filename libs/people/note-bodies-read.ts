import type { Request } from 'express';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { actorType, toEventMetadata } from '#libs/identity/call-identity.ts';
import { apiKeyModel } from '#libs/resources/api-keys/api-keys.ts';
import { userModel } from './users/users.ts';

/** Which recorded prompts and answers were read: those of one log record, of an export file, or of a traffic replay. */
export type BodiesRead = { log_id: string } | { export_id: string } | { replay_id: string };

/**
 * Appends an event to the stream of the key (or of the user, if there is no key) that reads recorded bodies. Call it before
 * the bodies are read, so that they cannot be read if recording the event fails.
 */
export async function noteBodiesRead(
  eventLog: Pick<EventLog, 'transact'>,
  request: Request,
  data: BodiesRead,
): Promise<void> {
  const caller = getCaller(request);
  const { workspaceId, keyId } = caller;
  const type = actorType(caller);
  const model = type === 'user' ? userModel : apiKeyModel;
  await eventLog.transact({ workspaceId, streams: [keyId], metadata: toEventMetadata(request) }, (unit) =>
    unit.append(model, keyId, [{ type: `${type}.bodies_read`, data }]),
  );
}
