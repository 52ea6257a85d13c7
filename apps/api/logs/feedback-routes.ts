import type { Kysely } from 'kysely';
import { z } from 'zod';
import { changeFeedback, recordFeedback } from '#libs/analytics/feedback.ts';
import { FeedbackAnswer, FeedbackBody, FeedbackChange } from '#libs/contracts/logs/feedback.ts';
import type { Database } from '#libs/database/schema.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { fingerprintBody, transactOnce } from '#libs/event-log/idempotency.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

type Deps = { db: Kysely<Database>; eventLog: EventLog };

const toCachedAnswer = (message: string, ids: string[]): z.output<typeof FeedbackAnswer> => ({
  status: 'success',
  message,
  feedback_ids: ids,
  feedback_id: ids,
});

/** POST /v1/feedback and PUT /v1/feedback/{id}. Errors: invalid_request, not_found, quota_exceeded, conflict (twin). */
export function feedbackRoutes({ db, eventLog }: Deps): Route[] {
  const responses = { 200: { description: 'The feedback was stored.', schema: FeedbackAnswer } };
  const about = { tag: 'Feedback', scope: 'feedback.write', responses } as const;
  return [
    {
      method: 'POST',
      path: '/v1/feedback',
      operationId: 'createFeedback',
      summary: 'Give feedback on one or more traces',
      description:
        'Takes values from -10 to 10 for the calls of a trace, one item or up to 100. A list is stored completely or not ' +
        'at all. If you repeat a request with the same `Idempotency-Key`, no feedback is added.',
      example: { trace_id: '01a209afc07470008001885eb92291f8', value: 1, weight: 1 },
      errors: { too_much_feedback: 'the trace has reached its limit of feedback' },
      ...about,
      ...withInput({ body: FeedbackBody }, async ({ body }, request, response) => {
        const { workspaceId, keyId } = getCaller(request);
        const items = (Array.isArray(body) ? body : [body]).map((item) => ({
          traceId: item.trace_id ?? item.traceID ?? '',
          value: item.value,
          weight: item.weight,
          metadata: item.metadata ?? null,
        }));
        const call = { ...getCallIdentity(request), fingerprint: fingerprintBody(getJsonBody(request).bytes) };
        // There is no event, because feedback is primary data. The command only makes sure that a repeated request is
        // stored once.
        const command = { workspaceId, streams: [], metadata: toEventMetadata(request) };
        const { body: answer } = await transactOnce(eventLog, call, command, async ({ tx }) => ({
          status: 200,
          body: toCachedAnswer(
            'Feedback recorded',
            await recordFeedback(tx, workspaceId, items, { source: 'api', keyId }),
          ),
        }));
        response.json(answer);
      }),
    },
    {
      method: 'PUT',
      path: '/v1/feedback/:id',
      operationId: 'updateFeedback',
      summary: 'Change feedback',
      description:
        'Takes the ID that was returned when the feedback was created. Analytics show the new value at the time of the original feedback. ' +
        'Members that you leave out stay unchanged.',
      example: { value: -1, weight: 0.5 },
      errors: { feedback_not_found: 'the workspace has no feedback with this ID' },
      ...about,
      ...withInput(
        { params: z.object({ id: z.string() }), body: FeedbackChange },
        async ({ params, body }, request, response) => {
          if (body.feedback_id !== undefined && body.feedback_id !== params.id) {
            const message =
              "Invalid 'feedback_id': it differs from the ID in the path. Leave it out, or send the same ID.";
            throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'feedback_id' });
          }
          await changeFeedback(db, getCaller(request).workspaceId, params.id, body);
          response.json(toCachedAnswer('Feedback changed', [params.id]));
        },
      ),
    },
  ];
}
