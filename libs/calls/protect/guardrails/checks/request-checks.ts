import type { GuardrailCheck } from '#libs/contracts/configs/guardrail-checks.ts';
import { otherModelsIn } from '#libs/calls/allowed-models.ts';
import { isModelNamed } from '#libs/prices/model-names.ts';
import type { GuardrailSubject } from '../texts/subject.ts';
import { holds, type Finding } from './text-checks.ts';

export type RequestCheck = Extract<
  GuardrailCheck,
  { name: 'modelWhitelist' | 'requiredMetadataKeys' | 'allowedRequestTypes' }
>;

/** The checks of a call that do not read its texts. */
export function checkRequest(check: RequestCheck, { model, metadata, operation, request }: GuardrailSubject): Finding {
  switch (check.name) {
    case 'modelWhitelist': {
      const { models, not } = check.parameters;
      const { names, chooses } = otherModelsIn(request);
      const data = { model, not };
      if (chooses !== null)
        return { verdict: false, data: { ...data, explanation: `'${chooses}' lets the provider choose a model.` } };
      const passes = (name: string): boolean =>
        not ? !models.some((excluded) => isModelNamed(name, excluded)) : models.includes(name);
      return { verdict: [model ?? '', ...names].every(passes), data };
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
