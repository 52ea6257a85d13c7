import { eraseTexts, type Person } from '#libs/event-log/erase-events.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { PositionedEvent } from '#libs/event-log/read-events.ts';

const ownMembers = new Set(['email', 'first_name', 'last_name', 'subject', 'address', 'addresses', 'user_agent']);
const placeMembers = new Set(['address', 'addresses']);

/**
 * Returns an event without the texts that identify the person, or null if it has none. Its data is the same object if only
 * the metadata has such texts. Texts that contain an e-mail
 * address of the person are erased wherever they are; names only from the records of the person, because others have
 * the same names; network addresses also from what the person did.
 */
export function erasePersonalTexts(event: PositionedEvent, person: Person): PositionedEvent | null {
  const { emails, subjects, streams, userId } = person;
  const names = (text: string): boolean => {
    const lower = text.toLowerCase();
    return subjects.includes(lower) || emails.some((email) => lower.includes(email));
  };
  const { id, principal } = event.metadata.actor;
  const isByPerson = id === userId || principal?.id === userId;
  const isOwn = streams.has(event.streamId);
  const inData = (text: string, member: string): boolean =>
    (isOwn && ownMembers.has(member)) || (isByPerson && placeMembers.has(member)) || names(text);
  const inMetadata = (text: string, member: string): boolean => (isByPerson && placeMembers.has(member)) || names(text);
  const data = eraseTexts(event.data, inData) as object;
  const metadata = eraseTexts(event.metadata, inMetadata) as EventMetadata;
  const isSame = JSON.stringify(data) === JSON.stringify(event.data);
  if (isSame && JSON.stringify(metadata) === JSON.stringify(event.metadata)) return null;
  return { ...event, data: isSame ? event.data : data, metadata };
}
