import type { GuardrailCheck } from '#libs/contracts/guardrail-checks.ts';
import type { GuardrailSubject } from './subject.ts';
import { holds, type Finding } from './text-checks.ts';

export type RequestCheck = Extract<
  GuardrailCheck,
  { name: 'modelWhitelist' | 'requiredMetadataKeys' | 'allowedRequestTypes' }
>;

/** The checks of a call that do not read its texts. */
export function checkRequest(check: RequestCheck, { model, metadata, operation }: GuardrailSubject): Finding {
  switch (check.name) {
    case 'modelWhitelist': {
      const { models, not } = check.parameters;
      return { verdict: models.includes(model ?? '') !== not, data: { model, not } };
    }
    case 'requiredMetadataKeys': {
      const { metadataKeys, operator } = check.parameters;
      const missing = metadataKeys.filter((key) => !Object.hasOwn(metadata ?? {}, key));
      const present = metadataKeys.length - missing.length;
      return { verdict: holds(operator, present, metadataKeys.length), data: { operator, missing } };
    }
    case 'allowedRequestTypes': {
      const { allowedTypes, blockedTypes, not } = check.parameters;
      const allowed = allowedTypes === undefined || allowedTypes.length === 0 || allowedTypes.includes(operation);
      const verdict = allowed && !(blockedTypes ?? []).includes(operation);
      return { verdict: verdict !== not, data: { requestType: operation, not } };
    }
  }
}
