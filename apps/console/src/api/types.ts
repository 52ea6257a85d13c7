import type { paths } from '../../generated/api.ts';

type Ok<Operation> = Operation extends { responses: { 200: { content: { 'application/json': infer Body } } } }
  ? Body
  : never;

/** The answer to a GET of this path. */
export type Answer<Path extends keyof paths> = paths[Path] extends { get: infer Operation } ? Ok<Operation> : never;

export type Session = Answer<'/v1/session'>;
export type AcceptedInvite = Ok<paths['/v1/admin/users/invites/accept']['post']>;
export type Batch = Answer<'/v1/batches'>['data'][number];
/** A batch as on its own page: includes its progress and the reasons why its lines wait. */
export type BatchDetail = Batch & Pick<Answer<'/v1/batches/{batch_id}'>, 'waits' | 'gateway'>;
export type DryRun = Ok<paths['/v1/batches/dry-run']['post']>;
export type FileObject = Answer<'/v1/files/{file_id}'>;
export type LogRecord = Omit<Answer<'/v1/logs'>['data'][number], 'object'>;
export type LogDetails = Answer<'/v1/logs/{log_id}'>;
export type CallStep = NonNullable<LogDetails['steps']>[number];
export type EventObject = Answer<'/v1/events'>['data'][number];
